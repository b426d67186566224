"""A reader gives every answer a risk and spans, or says in a sentence why it cannot."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clew.base.errors import InputError, StoreError
from clew.hallucination.grounded import GroundedAnswer, Reader, load_reader
from clew.hallucination.grounded.network import (
    Attention,
    LowRank,
    cut_pieces,
    encode_all,
    encode_frame,
    encode_places,
    linear_layers,
)
from clew.hallucination.grounded.passages import (
    MOST_SOURCE_CHARACTERS,
    Passages,
    cut_at_sentences,
    split_sentences,
    whole_words,
)
from clew.hallucination.grounded.reader import (
    ReaderSettings,
    UnitRisk,
    find_spans,
    make_network,
    without_minor,
)
from clew.hallucination.llm.models import fingerprint, load_model
from clew.metrics.calibration import PlattScale

SOURCE = "Items can be returned within 30 days of delivery. Refunds take a week."
ROW = GroundedAnswer(
    answer="You can return items within 60 days.", sources=(SOURCE,), question="How long?"
)
SCALE = PlattScale(slope=1.0, intercept=0.0, middle=0.0, spread=1.0)


def make_reader(model_folder: Path, **changes: object) -> Reader:
    loaded = load_model(str(model_folder), device="cpu")
    described = {"id": str(model_folder), "fingerprint": fingerprint(loaded.model)}
    network = make_network(loaded, "both")
    torch.manual_seed(0)
    network.insert_low_rank(2)
    for layer in network.modules():
        if isinstance(layer, LowRank):
            torch.nn.init.normal_(layer.up, std=0.1)
    torch.nn.init.normal_(network.head.weight)
    settings = ReaderSettings(model=described, rank=2, calibration=SCALE, **changes)  # type: ignore[arg-type]
    network.eval().pack_rows()
    return Reader(network, loaded.tokenizer, settings, network.adapter())


@pytest.fixture(scope="module")
def reader(model_folder: Path) -> Reader:
    return make_reader(model_folder)


def test_saved_reader_gives_the_same_risks(reader: Reader, tmp_path: Path) -> None:
    reader.save(tmp_path)
    again = load_reader(tmp_path, device="cpu")
    assert not any(isinstance(part, LowRank) for part in again.network.modules())  # merged
    mine, theirs = reader.read([ROW])[0], again.read([ROW])[0]
    # Where a CPU is faster in 16 bits, a loaded reader uses them.
    assert mine.risk == pytest.approx(theirs.risk, abs=0.02)
    assert mine.state == "checked" and mine.verdict in ("correct", "hallucinated")


def test_many_suspicious_tokens_count_more_than_one(reader: Reader) -> None:
    one, many = np.array([2.0, -6, -6, -6]), np.array([2.0, 1, 1, 1])
    by_peak = reader.settings.pool([one, many])
    by_both = replace(reader.settings, mean_weight=0.75).pool([one, many])
    assert by_both[1] - by_both[0] > by_peak[1] - by_peak[0] + 3
    assert by_peak == pytest.approx([2.0, 2.17], abs=0.01)
    assert np.isfinite(reader.settings.pool([np.zeros(0)])).all()


def test_reader_of_an_earlier_version_keeps_its_scores(reader: Reader, tmp_path: Path) -> None:
    reader.save(tmp_path)
    path = tmp_path / "reader.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in ("mean_weight", "clew_checksum"):
        del content[name]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert load_reader(tmp_path, device="cpu").settings.mean_weight == 0


@pytest.mark.parametrize("attention", ["both", "causal"])
def test_rows_are_read_alike_with_and_without_padding(
    model_folder: Path, attention: Attention
) -> None:
    network = make_network(load_model(str(model_folder), device="cpu"), attention).eval()
    torch.nn.init.normal_(network.head.weight)
    tokens, lengths = torch.arange(24).view(3, 8), torch.tensor([8, 3, 6])
    with torch.no_grad():
        padded = network(tokens, lengths)
        network.pack_rows()
        packed = network(tokens, lengths)
    assert network.is_packed
    for row, length in enumerate(lengths.tolist()):
        assert torch.allclose(packed[row, :length], padded[row, :length], atol=1e-4)


@pytest.mark.slow
def test_many_answers_are_read_as_each_alone(model_folder: Path) -> None:
    reader = make_reader(model_folder)
    rows = [replace(ROW, answer=" ".join([ROW.answer] * number)) for number in (1, 7, 3)]
    together, alone = reader.read(rows), [reader.read([row])[0] for row in rows]
    assert [one.risk for one in together] == pytest.approx([one.risk for one in alone], abs=0.01)


def test_tokens_sentences_and_spans_are_places_in_the_answer(reader: Reader) -> None:
    reading = reader.read([ROW])[0]
    assert reading.risk is not None
    assert reading.risk >= max(token.risk for token in reading.tokens)
    for unit in (*reading.tokens, *reading.sentences, *reading.spans):
        assert ROW.answer[unit.start : unit.end] == unit.text
    assert [one.text for one in reading.sentences] == [ROW.answer]


def test_spans_of_little_risk_are_marked_only_where_there_is_no_other() -> None:
    low, high = (UnitRisk(start=0, end=3, text="You", risk=risk) for risk in (0.1, 0.8))
    assert without_minor([low, high], 0.3) == [high]
    assert without_minor([low], 0.3) == [low]
    assert without_minor([], 0.3) == []


def test_token_is_supported_if_any_window_supports_it(model_folder: Path) -> None:
    long = GroundedAnswer(answer=ROW.answer, sources=(SOURCE * 3, SOURCE * 9))
    narrow = make_reader(model_folder, window=160, overlap=16)
    ((tokens, places),) = encode_places(narrow.tokenizer, [long.answer])
    (source,) = encode_all(narrow.tokenizer, ["\n\n".join(long.sources)])
    frame = encode_frame(narrow.tokenizer)
    pieces = list(cut_pieces(frame, 0, source, [], tokens, window=160, overlap=16))
    assert len(pieces) > 2 and all(len(piece.tokens) <= 160 for piece in pieces)
    each = [narrow._pass([piece]).numpy()[0, piece.place : len(piece.tokens)] for piece in pieces]
    ((found, logits),) = narrow.token_logits([long])
    assert found == places
    np.testing.assert_allclose(logits, np.min(each, axis=0), atol=1e-4)


def test_answer_without_source_has_a_reason_and_no_risk(reader: Reader) -> None:
    wrong = {
        "no source": GroundedAnswer(answer="A.", sources=(" ",)),
        "is empty": GroundedAnswer(answer=" \n", sources=(SOURCE,)),
        f"at most {MOST_SOURCE_CHARACTERS:,}": GroundedAnswer(
            answer="A.", sources=("x" * 10_000_000,)
        ),
    }
    readings = reader.read([*wrong.values(), ROW])
    for reason, reading in zip(wrong, readings[:-1], strict=True):
        assert reason in (reading.reason or "")
        assert (reading.risk, reading.state, reading.spans) == (None, "unavailable", ())
    assert readings[-1].risk is not None


def test_reader_of_another_model_is_refused(reader: Reader, tmp_path: Path) -> None:
    other = ReaderSettings(
        model={"id": reader.settings.model["id"], "fingerprint": "0" * 16}, calibration=SCALE
    )
    Reader(reader.network, reader.tokenizer, other, reader.adapter).save(tmp_path)
    with pytest.raises(InputError, match="belongs to another language model"):
        load_reader(tmp_path, device="cpu")
    with pytest.raises(StoreError, match="there is no reader"):
        load_reader(tmp_path / "none")


def test_damaged_adapter_is_refused(reader: Reader, tmp_path: Path) -> None:
    name = next(one for one in reader.adapter if one.endswith(".up"))
    for change in ({name: torch.ones(1)}, {name: reader.adapter[name] * torch.nan}, {"x": None}):
        adapter = {**reader.adapter, **change}
        spoiled = {key: torch.ones(2) if one is None else one for key, one in adapter.items()}
        Reader(reader.network, reader.tokenizer, reader.settings, spoiled).save(tmp_path)
        with pytest.raises(StoreError, match="do not match the network"):
            load_reader(tmp_path, device="cpu")


def test_spans_extend_over_neighbors_and_join_over_a_gap_of_one() -> None:
    places = [(0, 2), (3, 5), (6, 8), (9, 11), (12, 14), (15, 17)]
    assert find_spans(places, np.array([1.0, -5, 1, -5, -5, 1]), 0.0) == [(0, 8), (15, 17)]
    assert find_spans(places, np.array([-5.0, -0.5, 1, -0.5, -5, -5]), 0.0) == [(3, 11)]
    assert find_spans(places, np.array([-5.0, -4, -3, -4, -5, -6]), 0.0) == [(6, 8)]  # the highest
    assert find_spans([], np.zeros(0), 0.0) == []


def test_spans_are_whole_words() -> None:
    text = "In 2021, profit doubled."
    assert whole_words(text, [(5, 12)]) == [(3, 15)]  # "21, pro"
    assert whole_words(text, [(3, 5), (5, 8), (9, 15)]) == [(3, 8), (9, 15)]
    assert whole_words(text, [(0, len(text))]) == [(0, len(text))]


def test_a_span_is_within_one_sentence() -> None:
    text = "Paid by check. Cards too. Fine."
    found = cut_at_sentences(text, [(5, 20), (26, 30)])
    assert [text[start:end] for start, end in found] == ["by check.", "Cards", "Fine"]


def test_answers_of_low_risk_have_no_spans(model_folder: Path) -> None:
    assert not make_reader(model_folder, threshold=1.0).read([ROW])[0].spans
    assert make_reader(model_folder, threshold=0.0).read([ROW])[0].spans


def test_nearest_passage_shares_the_rare_words_of_the_sentence() -> None:
    sources = ["Refunds take a week.", "Dr. Ames sells items. Items are returned within 30 days."]
    answer = "Thanks. Items can be returned within 60 days."
    near = Passages(sources).nearest(answer, 37, 44)
    assert near is not None and (near.source, near.text) == (
        1,
        "Items are returned within 30 days.",
    )
    assert Passages(sources).nearest("Zebra", 0, 5) is None
    assert [answer[slice(*one)] for one in split_sentences(answer)][0] == "Thanks."


def test_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no linear layers"):
        list(linear_layers(torch.nn.Embedding(2, 2)))
