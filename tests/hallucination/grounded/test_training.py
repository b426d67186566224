"""Readers are trained on labeled answers, and calibrated on documents that they have not seen."""

import random
from pathlib import Path

import pytest
import torch

from clew.base.errors import InputError
from clew.hallucination.grounded import GroundedAnswer, load_reader
from clew.hallucination.grounded.synthetic import GroundedLabel
from clew.hallucination.grounded.synthetic import make_answers as make_synthetic
from clew.hallucination.grounded.training import (
    ReaderTraining,
    average_adapters,
    hold_out,
    label_answers,
    train_reader,
)
from clew.hallucination.llm.models import load_model
from clew.hallucination.questions import open_records, read_answers
from tests.hallucination.grounded.answers import make_answers


@pytest.mark.slow
def test_trained_reader_is_saved_and_reads(model_folder: Path, tmp_path: Path) -> None:
    config = ReaderTraining(
        rank=2, epochs=1, window=128, overlap=16, batch_tokens=1024, held_out=0.4, base_rate=0.2
    )
    loaded = load_model(str(model_folder), device="cpu")
    reader = train_reader(loaded, make_answers(160), config)
    reader.save(tmp_path)
    again = load_reader(tmp_path, device="cpu")
    row = make_answers(2)[1]
    (mine,), (theirs,) = reader.read([row]), again.read([row])
    assert mine.risk == pytest.approx(theirs.risk, abs=2e-3)
    assert again.settings.mean_weight > 0 and 0 < again.settings.threshold < 1
    assert again.settings.card["trained_on"]["offices"]["answers"] < 160
    with pytest.raises(InputError, match="are left to train on"):
        train_reader(loaded, make_answers(14), config)


@pytest.mark.slow
def test_source_in_another_language_has_no_verdict(model_folder: Path) -> None:
    config = ReaderTraining(rank=1, epochs=1, window=128, overlap=16, held_out=0.4)
    reader = train_reader(load_model(str(model_folder), device="cpu"), make_answers(160), config)
    strange = GroundedAnswer(answer="It is closed.", sources=("Ωμέγα ψυχή ξένος λόγος " * 6,))
    reading = reader.read([strange])[0]
    assert (reading.state, reading.risk, reading.spans) == ("out_of_distribution", None, ())
    assert reading.distance is not None and reading.distance > 1
    assert "another language" in (reading.reason or "")


def test_documents_are_held_out_as_a_whole() -> None:
    seen, unseen = hold_out(make_answers(200), 0.3)
    assert len(seen) + len(unseen) == 200 and 20 < len(unseen) < 100
    assert not {one.group for one in seen} & {one.group for one in unseen}


def test_answers_without_source_or_label_are_excluded() -> None:
    rows = [
        {"context": "A.", "answer": "A.", "hallucinated": 1, "spans": [[0, 2]], "group": "g"},
        {"context": "A.", "answer": "A.", "hallucinated": None},
        {"question": "Who?", "answer": "A.", "hallucinated": 0},
    ]
    found, excluded = label_answers(read_answers(open_records(rows)), "mine")
    assert excluded == 2
    assert [(one.spans, one.group) for one in found] == [(((0, 2),), "mine/g")]


def test_made_spans_are_what_was_changed() -> None:
    source = (
        "Anna Berg founded the company in 1998. It sells lamps in Sweden. "
        "Revenue was 40 million in 2020. The main office moved to Gothenburg harbor."
    )
    answer = "The company was founded by Anna Berg in 1998. Lamps are sold in Sweden with profit."
    other = "Penguins live mostly in the southern hemisphere of the planet."
    supported = [
        GroundedLabel(answer=answer, sources=(source,), hallucinated=False, spans=(), group="1"),
        GroundedLabel(answer=other, sources=(other,), hallucinated=False, spans=(), group="2"),
    ]
    made = make_synthetic(supported, 60, random.Random(0))
    assert len(made) == 60 and all(one.is_synthetic for one in made)
    assert all(one.answer in source for one in made if not one.hallucinated)  # quoted
    for one in (one for one in made if one.hallucinated):
        texts = [one.answer[start:end] for start, end in one.spans or ()]
        assert texts and all(text.strip() for text in texts)
        original = next(two for two in supported if two.group == one.group)
        assert one.answer != original.answer or one.sources != original.sources


def test_average_of_equal_adapters_is_that_adapter() -> None:
    torch.manual_seed(0)
    one = {"a.down": torch.randn(2, 5), "a.up": torch.randn(4, 2), "head.bias": torch.ones(1)}
    mean = average_adapters([one, one, one], 2)
    change = mean["a.up"].float() @ mean["a.down"].float()
    torch.testing.assert_close(change, one["a.up"] @ one["a.down"], atol=2e-2, rtol=2e-2)
    assert mean["head.bias"].item() == 1
