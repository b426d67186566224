"""Span labels: where answers state several facts, which spans are correct, and their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from clew.base.errors import InputError, SettingsMismatchError
from clew.hallucination.labels import read_span_labels, spans_beside
from clew.hallucination.labels.answers import StoredAnswer
from clew.hallucination.labels.label import label_store
from clew.hallucination.labels.spans import SpanLabeler, score_spans
from clew.hallucination.samples.labeled import refuse_changed_spans
from clew.hallucination.samples.store import SampleStore
from tests.hallucination.labels.text_stores import trace_row, write_text_store

PARTS = {
    "capital": ["Hanoi", "Ha Noi"],
    "currency": ["Vietnamese dong", "dong"],
    "continent": ["Asia"],
}
OTHERS = ["Lima", "sol", "South America", "Africa", "Tanzanian shilling", "North America"]


def stored(text: str, parts: dict[str, list[str]] = PARTS) -> StoredAnswer:
    pairs = [(part, answer) for part, answers in parts.items() for answer in answers]
    return StoredAnswer(
        global_example_id=7,
        question_id="vn",
        question="What are they?",
        category=None,
        accepted=tuple(answer for _, answer in pairs),
        text=text,
        parts=tuple(part for part, _ in pairs),
    )


def labeled(text: str, parts: dict[str, list[str]] = PARTS) -> dict[str, tuple[str, str]]:
    answer = stored(text, parts)
    spans = SpanLabeler([*answer.accepted, *OTHERS]).label(answer)
    assert all(answer.text[span.start : span.end] == span.text for span in spans)
    return {span.part: (span.text, span.label) for span in spans}


@pytest.mark.parametrize(
    "text",
    [
        "The capital is Hanoi, the currency is the Vietnamese dong and the continent is Africa.",
        "The capital of Viet Nam is Hanoi, and its currency is Vietnamese dong. "
        "The continent is Africa.",
        "Capital: Hanoi; currency: Vietnamese dong; continent: Africa",
        'capital: "Hanoi"\ncurrency: Vietnamese dong\ncontinent: Africa',
        "The capital is Hanoi, which is old, while the currency is Vietnamese dong "
        "but the continent is Africa (see a map).",
    ],
)
def test_parts_are_found_in_sentences_and_lists(text: str) -> None:
    assert labeled(text) == {
        "capital": ("Hanoi", "correct"),
        "currency": ("Vietnamese dong", "correct"),
        "continent": ("Africa", "hallucinated"),
    }


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("Dongs", "correct"),
        ("national Vietnamese dong", "correct"),
        ("Vietnamese", "unsure"),
        ("Vietnamese donq", "unsure"),
        ("dong or dollar", "unsure"),
        ("sol", "hallucinated"),
        ("Japanese yen", "hallucinated"),
        ("one that the people of this country really like", "unsure"),
    ],
)
def test_values_that_wording_cannot_decide_are_unsure(value: str, label: str) -> None:
    assert labeled(f"The currency is {value}.")["currency"] == (value, label)


def test_another_known_name_is_hallucinated_however_similar() -> None:
    parts = {"continent": ["North America"]}
    assert labeled("The continent is South America.", parts)["continent"][1] == "hallucinated"
    assert labeled("The continent is Nord America.", parts)["continent"][1] == "unsure"
    adjective = labeled("The continent is the African continent.", {"continent": ["Africa"]})
    assert adjective["continent"][1] == "unsure"


def test_parts_that_are_missing_or_stated_twice_are_not_labeled() -> None:
    assert labeled("I do not know.") == {}
    twice = labeled("The capital is Hanoi. The capital is Lima.")
    assert twice == {"capital": ("Hanoi", "unsure")}
    assert labeled("The capital is St. George's.")["capital"][0] == "St. George's"


def test_score_of_an_answer_follows_from_its_spans() -> None:
    def score(text: str) -> float | None:
        answer = stored(text)
        return score_spans(SpanLabeler(OTHERS).label(answer))

    assert score("The capital is Hanoi and the continent is Asia.") == 1
    assert score("The capital is Hanoi and the continent is Africa.") == 0
    assert score("The capital is Hanoi and the currency is Vietnamese.") is None
    assert score("No idea.") is None


@pytest.fixture
def store(tmp_path: Path) -> Path:
    accepted = [text for texts in PARTS.values() for text in texts]
    names = [part for part, texts in PARTS.items() for _ in texts]
    texts = ("The capital is Hanoi.", "The capital is Lima and the continent is Asia.", "Hm.")
    rows: list[dict[str, Any]] = [
        trace_row(number, text, accepted, answer_parts=names) for number, text in enumerate(texts)
    ]
    field = pa.field("answer_parts", pa.list_(pa.string()))
    return write_text_store(tmp_path / "store", rows, extra=[field])


def test_spans_are_written_beside_the_scores(store: Path, tmp_path: Path) -> None:
    result = label_store(store, tmp_path / "scores.csv")
    assert [(row.question_id, row.score) for row in result.rows] == [("q0", 1), ("q1", 0)]
    assert result.unclear == ["q2"] and not result.excluded
    assert result.spans_path == spans_beside(tmp_path / "scores.csv")
    spans = read_span_labels(tmp_path / "scores.spans.csv")
    assert spans.counts == {0: 2, 1: 1}
    assert spans.spans["q1", 1] == [(15, 19, 1), (41, 45, 0)]
    assert not label_store(store, tmp_path / "scores.csv").written


def test_tokens_are_labeled_by_the_spans_that_they_are_in(store: Path, tmp_path: Path) -> None:
    label_store(store, tmp_path / "scores.csv")
    spans = read_span_labels(tmp_path / "scores.spans.csv")
    # The| capital| is| Li|ma| and the continent is| Asia|.
    ends = [3, 11, 14, 17, 19, 40, 45, 46]
    assert spans.label_tokens("q1", 1, ends).tolist() == [-2, -2, -2, 1, 1, -2, 0, -2]
    assert spans.label_tokens("q2", 2, ends).tolist() == [-2] * 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question_id,start,end\nq,1,2\n", 'no column "label"'),
        ("question_id,start,end,label\nq,x,2,correct\n", "line 2: start .x. is not an integer"),
        ("question_id,start,end,label\nq,4,2,correct\n", "line 2: the span from 4 to 2"),
        ("question_id,start,end,label\nq,1,2,maybe\n", 'labeled "maybe"'),
    ],
)
def test_malformed_span_files_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "spans.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_span_labels(path)


def test_file_without_example_ids_applies_to_the_question(tmp_path: Path) -> None:
    path = tmp_path / "spans.csv"
    path.write_text("question_id,start,end,label\nq,0,2,1\n")
    assert read_span_labels(path).label_tokens("q", 3, [2, 4]).tolist() == [1, -2]


def test_changed_span_labels_of_stored_answers_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "spans.csv"
    path.write_text("question_id,start,end,label\nq1,0,2,correct\n")
    rows = SimpleNamespace(question_id=["q2", "q1"], global_example_id=np.array([2, 1]))
    before = read_span_labels(path).digest(["q1", "q2"], [1, 2])
    stored = SimpleNamespace(
        numbers=lambda: [0], spans_digest=lambda _: before, stored_rows=lambda _: rows
    )
    store = cast(SampleStore, stored)
    path.write_text("question_id,start,end,label\nq1,0,2,correct\nq3,0,2,correct\n")
    refuse_changed_spans(tmp_path, store, read_span_labels(path))  # further answers may be added
    path.write_text("question_id,start,end,label\nq1,0,2,hallucinated\n")
    with pytest.raises(SettingsMismatchError, match="the span labels of answers in shard 0"):
        refuse_changed_spans(tmp_path, store, read_span_labels(path))
