"""`self_evaluation`: the model is asked about its answers, with the same values in every batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew import TraceBatchLoader
from clew.base.errors import InputError, SettingsMismatchError
from clew.hallucination.capture import LoadedModel, extract
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.llm.self_evaluation import (
    PHRASINGS,
    Evaluator,
    Phrasing,
    SelfEvaluation,
    make_follow_up,
)
from clew.storage.manifest import read_manifest
from tests.builders import make_decoder, ragged_prompts, tiny_loaded, tiny_tokenizer
from tests.hallucination.llm.reference import pass_plainly
from tests.stores import after_one_batch, assert_same_store, one_thread, read_columns, tiny_config

pytestmark = pytest.mark.slow

COLUMNS = ("p_true", "contrast_true", "contrast_false")
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory,
    model_folder: Path,
    loaded: LoadedModel,
    questions_file: Path,
) -> Path:
    """The store of an uninterrupted capture with self-evaluation. Shared: do not modify."""
    out = tmp_path_factory.mktemp("evaluated") / "store"
    config = tiny_config(model_folder, questions_file, out, self_evaluation=True, num_samples=12)
    with one_thread():
        extract(config, loaded=loaded)
    return out


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("same_length", [False, True])
def test_evaluation_equals_plain_passes(family: str, same_length: bool) -> None:
    loaded, prefix = tiny_loaded(family), [40, 41]
    sequences = ragged_prompts(5, prefix)
    evaluator = Evaluator(SelfEvaluation.of_model(3), loaded, chat=False)
    plan = BatchPlan(rows=3, tokens=1000, same_length=same_length)
    model = make_decoder(loaded).packed
    found = evaluator.evaluate(model, sequences, plan)
    layers = list(evaluator.evaluation.layers)
    for row, sequence in enumerate(sequences):
        for place, phrasing in enumerate(PHRASINGS):
            asked = make_follow_up(loaded.tokenizer, phrasing, chat=False)
            logprobs = pass_plainly(loaded.model, [*sequence, *asked.tokens]).logprobs[-1]
            odds = np.exp(logprobs[asked.true] - logprobs[asked.false])
            assert found["p_true"][row, place] == pytest.approx(odds / (1 + odds), abs=1e-4)
        asked = make_follow_up(loaded.tokenizer, PHRASINGS[0], chat=False)
        for name, reply in (("contrast_true", asked.true), ("contrast_false", asked.false)):
            states = pass_plainly(loaded.model, [*sequence, *asked.tokens, reply]).hidden
            assert np.allclose(found[name][row], states[layers, -1], atol=5e-3)


def test_self_evaluation_does_not_change_the_rest_of_the_capture(
    capture: Any, evaluated: Path, tmp_path: Path
) -> None:
    capture("without", num_samples=12)
    with_evaluation = read_columns(evaluated)
    assert {name: with_evaluation.pop(name) for name in COLUMNS}
    assert with_evaluation == read_columns(tmp_path / "without")
    trace = next(TraceBatchLoader(evaluated).iter_traces())
    assert [trace[name].shape for name in COLUMNS] == [(3,), (2, 32), (2, 32)]
    described = read_manifest(evaluated).settings["self_evaluation"]
    assert described == SelfEvaluation.of_model(3).describe()
    assert "self_evaluation" not in read_manifest(tmp_path / "without").settings


def test_stopped_run_gives_the_same_evaluation(
    capture: Any, evaluated: Path, tmp_path: Path
) -> None:
    settings = {"self_evaluation": True, "num_samples": 12}
    while not capture(**settings, should_stop=after_one_batch()).finished:
        pass
    assert_same_store(tmp_path / "new", evaluated)


def test_batches_change_the_evaluation_only_by_rounding(
    capture: Any, evaluated: Path, tmp_path: Path
) -> None:
    capture(self_evaluation=True, num_samples=12, generation_batch=5, keep="full")
    traces = (TraceBatchLoader(path).iter_traces() for path in (tmp_path / "new", evaluated))
    for one, other in zip(*traces, strict=True):
        for name in COLUMNS:
            assert np.allclose(one[name], other[name], atol=5e-3), name


def test_out_of_device_memory_while_evaluating_halves_the_batch(
    capture: Any, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Evaluator.evaluate

    def limited(evaluator: Evaluator, model: Any, sequences: Any, plan: BatchPlan) -> Any:
        if len(sequences) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(evaluator, model, sequences, plan)

    monkeypatch.setattr(Evaluator, "evaluate", limited)
    capture(self_evaluation=True, num_samples=12)
    found, expected = (read_columns(path) for path in (tmp_path / "new", evaluated))
    assert found["answer"] == expected["answer"] and found.keys() == expected.keys()
    assert any("4 prompts at a time" in note for note in read_manifest(tmp_path / "new").notes)


def test_a_store_continues_only_with_the_same_self_evaluation(capture: Any, tmp_path: Path) -> None:
    capture(self_evaluation=True, num_samples=4)
    with pytest.raises(SettingsMismatchError, match=r"self_evaluation\.layers: was \[1, 2\]"):
        capture(num_samples=8)
    assert read_manifest(tmp_path / "new").rows == 4


def test_a_follow_up_is_the_next_turn_of_the_chat() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    asked = make_follow_up(tokenizer, Phrasing(text="Yes?", true="Yes", false="No"), chat=True)
    assert tokenizer.decode(asked.tokens) == "<eos><user>Yes?<eos><assistant>"
    assert tokenizer.decode([asked.true]) == "Y" and tokenizer.decode([asked.false]) == "N"


@pytest.mark.parametrize(
    ("template", "phrasing", "reason"),
    [
        (CHAT, Phrasing(text="?", true="No", false="No"), "does not tell the replies"),
        ("{{ messages[-1]['content'] }}", PHRASINGS[0], "drops earlier answers"),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(
    template: str, phrasing: Phrasing, reason: str
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=reason):
        make_follow_up(tokenizer, phrasing, chat=True)


def test_a_question_without_room_for_its_evaluation_is_excluded(capture: Any) -> None:
    with pytest.raises(InputError, match="tokens of self-evaluation, exceed the model's limit"):
        capture(self_evaluation=True, num_samples=1, max_new_tokens=190)


@pytest.mark.parametrize(
    "change",
    [
        {"phrasings": []},
        {"phrasings": [{"text": "", "true": "Yes", "false": "No"}]},
        {"layers": [2, 1]},
        {"layers": [1, 3]},
        {"layers": [-1]},
        {"version": 2},
        {"more": 1},
    ],
)
def test_a_description_that_does_not_fit_the_model_is_refused(change: dict[str, Any]) -> None:
    described = SelfEvaluation.of_model(3).describe()
    assert SelfEvaluation.read(described, 3) == SelfEvaluation.of_model(3)
    with pytest.raises(ValueError, match="self_evaluation"):
        SelfEvaluation.read(described | change, 3)
