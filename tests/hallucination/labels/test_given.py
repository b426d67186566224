"""Labels and spans of answers that a file gives, on their way into the scores."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clew.base.errors import InputError
from clew.hallucination.labels import read_scores, read_span_labels, spans_beside
from clew.hallucination.labels.chat import ChatConfig
from clew.hallucination.labels.label import find_doubt, label_store
from clew.hallucination.traces.schema import CONTEXT, given_fields
from tests.hallucination.labels.judge_server import Reply, judge_server
from tests.hallucination.labels.text_stores import trace_row, write_text_store

TEXT = "Lima is old. Oslo is hot."


def given_store(folder: Path, *rows: dict[str, Any]) -> Path:
    traces = [
        trace_row(number, row.pop("answer", TEXT), row.pop("accepted", None), **row)
        for number, row in enumerate(rows)
    ]
    extra = [*given_fields(), pa.field(CONTEXT, pa.string())]
    return write_text_store(folder / "traces", traces, extra=extra, answers="given")


def test_labels_of_the_file_win_and_others_are_scored_or_excluded(tmp_path: Path) -> None:
    store = given_store(
        tmp_path,
        {"given_score": 0.0},
        {"given_score": 1.0, "accepted": ["Paris"]},
        {"accepted": ["Lima"], "answer": "It is Lima."},
        {},
        {"given_score": 0.0, "question_id": "q0", "answer": "another answer to it"},
    )
    result = label_store(store, tmp_path / "scores.csv")
    found = {row.global_example_id: (row.score, row.method) for row in result.rows}
    assert found == {0: (0, "given"), 1: (1, "given"), 2: (1, "alias"), 4: (0, "given")}
    assert result.excluded == ["q3"]
    assert result.spans_path is None
    doubts = [find_doubt(row, 0.5) for row in result.rows]
    assert doubts[1].about == "its label in the file and the words disagree"
    assert not doubts[0].is_large
    assert read_scores(result.path).find(["q0", "q0"], [0, 4]) == [0, 0]


def test_text_between_given_spans_is_correct(tmp_path: Path) -> None:
    store = given_store(
        tmp_path,
        {"given_spans": [(13, 17, 1), (21, 24, -1)]},
        {"given_spans": [], "given_score": 1.0},
        {"given_score": 1.0},
        {"given_score": 0.0},
    )
    result = label_store(store, tmp_path / "scores.csv")
    assert [row.score for row in result.rows] == [0, 1, 1, 0]
    spans = read_span_labels(spans_beside(result.path))
    ends = [4, 12, 17, 20, 24, 25]  # Lima| is old.| Oslo| is| hot|.
    labels = [spans.label_tokens(f"q{number}", number, ends).tolist() for number in range(4)]
    assert labels == [[0, 0, 1, 0, -1, 0], [0] * 6, [0] * 6, [-1] * 6]


def test_judge_reads_the_source_of_answers_without_labels(tmp_path: Path) -> None:
    store = given_store(tmp_path, {"context": "Oslo is cold."}, {"given_score": 1.0})
    with judge_server(lambda *_: Reply(content="NO")) as server:
        judge = ChatConfig(url=server.url, model="j")
        result = label_store(store, tmp_path / "scores.csv", judge=judge)
    assert [(row.score, row.method) for row in result.rows] == [(0, "judge j"), (1, "given")]
    [asked] = server.asked
    assert "Oslo is cold." in asked["messages"][1]["content"]
    assert "supported by the source" in asked["messages"][0]["content"]


def test_answers_without_any_label_are_refused_with_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the 1 answers .* has a label or accepted"):
        label_store(given_store(tmp_path, {}), tmp_path / "scores.csv")
