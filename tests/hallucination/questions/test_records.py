"""Records of every common shape become questions, and skipped ones are listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.questions import Question
from tests.hallucination.questions.loading import load_record, load_text


def test_published_nq_open_format_is_read(tmp_path: Path) -> None:
    line = {"question": "who wrote it", "answer": ["Bobby Scott", "Bob Russell"]}
    loaded = load_text(tmp_path, "NQ-open.dev.jsonl", json.dumps(line) + "\n")
    assert loaded.name == "NQ-open.dev.jsonl"
    assert loaded.questions == [
        Question(
            id="NQ-open.dev_0", question="who wrote it", answers=("Bobby Scott", "Bob Russell")
        )
    ]


def test_trivia_qa_format_is_read(tmp_path: Path) -> None:
    question = load_record(
        tmp_path,
        {
            "question": "Who was the man behind The Chipmunks?",
            "question_id": "tc_2",
            "answer": {
                "aliases": ["David Seville", "Ross Bagdasarian"],
                "normalized_aliases": ["david seville"],
                "type": "WikipediaEntity",
                "value": "David Seville",
            },
        },
    )
    assert question.id == "tc_2"
    assert question.answers == ("David Seville", "Ross Bagdasarian", "david seville")


def test_original_trivia_qa_format_is_read(tmp_path: Path) -> None:
    record = {
        "QuestionId": "tc_2",
        "Question": "Who?",
        "Answer": {"Value": "David", "NormalizedAliases": ["david"]},
    }
    loaded = load_text(tmp_path, "qa.json", json.dumps({"Data": [record], "Version": 1.0}))
    assert loaded.questions == [Question(id="tc_2", question="Who?", answers=("David", "david"))]


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answer": "Paris"}, ("Paris",)),
        ({"answer": 42}, ("42",)),
        ({"answer": 42.0}, ("42",)),
        ({"answer": 0.5}, ("0.5",)),
        ({"answer": True}, ("yes", "true")),
        (
            {"answers": {"text": ["Paris", "in Paris"], "answer_start": [1, 5]}},
            ("Paris", "in Paris"),
        ),
        ({"answers": [{"text": "Paris"}, {"text": "Lutetia"}]}, ("Paris", "Lutetia")),
        ({"possible_answers": '["politician", "pol"]'}, ("politician", "pol")),
        ({"answer": "['it''s', \"a\"]"}, ("its", "a")),
        ({"answer": "[0, 1]"}, ("[0, 1]",)),
        ({"answer": "[unclosed"}, ("[unclosed",)),
        ({"answer": " Paris ", "aliases": ["Paris", "", None, "Lutetia"]}, ("Paris", "Lutetia")),
        ({"answer": None}, ()),
        ({"answer": "  "}, ()),
        ({}, ()),
    ],
)
def test_answers_of_every_common_shape_are_read(
    tmp_path: Path, fields: dict[str, Any], answers: tuple[str, ...]
) -> None:
    assert load_record(tmp_path, {"question": "q", **fields}).answers == answers


@pytest.mark.parametrize(
    ("record", "id", "category"),
    [
        ({"Question": "q", "QID": 7, "Topic": "art"}, "7", "art"),
        ({"query": "q", "_id": "x", "category": "a" * 200, "type": "bridge"}, "x", "bridge"),
        ({"question_text": "q", "id": None, "subject": 3}, "one_0", None),
        ({"prompt": "a form", "question": "q", "id": "b", "question_id": "a"}, "a", None),
    ],
)
def test_columns_are_recognized_by_name(
    tmp_path: Path, record: dict[str, Any], id: str, category: str | None
) -> None:
    question = load_record(tmp_path, record)
    assert (question.question, question.id, question.category) == ("q", id, category)


def test_unusable_records_are_skipped_and_listed(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "question": "one"}',
        "",
        '{"id": "b", "question": ',
        '{"id": "c", "text": "no question"}',
        '{"id": "d", "question": " "}',
        '{"id": "a", "question": "again"}',
        '["a", "list"]',
        '{"id": "e", "question": ["a", "chat"]}',
        '{"id": "f", "question": "half \\ud800"}',
        '{"question": "last"}',
        "",
    ]
    loaded = load_text(tmp_path, "ugly.jsonl", "\r\n".join(lines))
    # Generated ids count malformed records too, so fixing one changes no other id.
    assert [question.id for question in loaded.questions] == ["a", "ugly_8"]
    assert [(left.where, left.reason.split(" (")[0]) for left in loaded.skipped] == [
        ("line 3", "it is not JSON"),
        ("line 4 (id c)", "it has no question"),
        ("line 5 (id d)", "its question is empty"),
        ("line 6 (id a)", "its id is a duplicate"),
        ("line 7", "it is a list, not a record with named fields"),
        ("line 8 (id e)", "its question is a list, not text"),
        ("line 9 (id f)", "its text contains an invalid character"),
    ]


def test_hash_covers_the_whole_file(tmp_path: Path) -> None:
    lines = "".join(f'{{"question": "q{n}", "answer": "{n}"}}\n' for n in range(5))
    two, five = (load_text(tmp_path, "a.jsonl", lines, limit) for limit in (2, None))
    other = load_text(tmp_path, "a.jsonl", lines.replace('"4"', '"5"'), 2)
    assert two.questions == five.questions[:2] == other.questions
    assert two.sha256 == five.sha256 != other.sha256
