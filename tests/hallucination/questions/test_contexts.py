"""Questions about a text: the text comes with the question, whatever a dataset calls it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clew.hallucination.questions import collect_questions, load_questions

PASSAGE = "Ann won. Bob lost."


@pytest.mark.parametrize(
    "fields",
    [
        {"context": PASSAGE},
        {"Passage": f" {PASSAGE}\n"},
        {"context": None, "story": PASSAGE},
        {"contexts": [PASSAGE]},
        {"context": {"title": ["A"], "sentences": [["Ann won.", " Bob lost."]]}},
        {"passages": {"is_selected": [1], "passage_text": [PASSAGE]}},
    ],
)
def test_context_of_every_common_shape_is_read(fields: dict[str, Any]) -> None:
    (question,) = collect_questions([{"question": "Who won?", **fields}]).questions
    assert question.context == PASSAGE


def test_passages_are_separated_by_a_blank_line() -> None:
    (question,) = collect_questions([{"question": "Who?", "contexts": ["A.", "", "B."]}]).questions
    assert question.context == "A.\n\nB."


def test_record_to_write_from_is_read_as_json() -> None:
    business = {"name": "Café", "hours": {"Monday": "9-5"}, "reviews": [{"stars": 4}]}
    (question,) = collect_questions([{"question": "Describe it.", "context": business}]).questions
    expected = '{"name": "Café", "hours": {"Monday": "9-5"}, "reviews": [{"stars": 4}]}'
    assert question.context == expected
    webpage = {"question": "Who?", "document": {"html": "<b>", "tokens": ["a"]}}
    assert collect_questions([webpage]).questions[0].context is None


@pytest.mark.parametrize("empty", [None, "", "  ", [], {}, {"text": None}, float("nan")])
def test_empty_context_is_no_context(empty: object) -> None:
    loaded = collect_questions([{"question": "Who?", "context": empty}])
    assert loaded.questions[0].context is None
    assert loaded.contexts_sha256 == ""


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (7, "its context contains a int, not text"),
        ("x" * ((1 << 24) + 1), "its context has 16,777,217 characters; at most 16,777,216"),
        ("\ud800", "an invalid character"),
    ],
)
def test_record_with_an_unusable_context_is_skipped(context: object, reason: str) -> None:
    records = [{"question": "Who?"}, {"question": "Who else?", "context": context}]
    loaded = collect_questions(records)
    assert len(loaded.questions) == 1
    assert reason in loaded.skipped[0].reason


def test_contexts_have_a_hash_of_their_own() -> None:
    bare = collect_questions([{"id": "a", "question": "Who?"}])
    first = collect_questions([{"id": "a", "question": "Who?", "context": "Ann."}])
    other = collect_questions([{"id": "a", "question": "Who?", "context": "Bob."}])
    assert bare.sha256 == first.sha256 == other.sha256
    assert len({bare.contexts_sha256, first.contexts_sha256, other.contexts_sha256}) == 3
    assert first.without_contexts() == bare


@pytest.mark.slow
@pytest.mark.parametrize("name", ["set.csv", "set.jsonl", "set.parquet"])
def test_files_of_every_format_have_contexts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".csv":
        path.write_text(f"question,context\nWho?,{PASSAGE}\n")
    elif path.suffix == ".jsonl":
        path.write_text(f'{{"question": "Who?", "context": "{PASSAGE}"}}\n')
    else:
        pq.write_table(pa.table({"question": ["Who?"], "context": [PASSAGE]}), path)
    assert load_questions(str(path)).questions[0].context == PASSAGE
