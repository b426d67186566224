"""Records with an answer to score."""

from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.questions import RowFormat, describe_answers, open_records
from clew.hallucination.questions.answered import read_answered
from clew.hallucination.questions.records import Row


def read(record: object) -> Any:
    return read_answered(Row(number=3, where="line 4", record=record), "answers")


def test_the_answer_is_read_beside_the_accepted_answers() -> None:
    found = read({"question": "q", "answer": " Oslo ", "answers": ["Paris"], "context": "c"})
    assert (found.answer, found.accepted, found.context) == ("Oslo", ("Paris",), "c")
    assert found.id == "answers_3"


def test_beside_a_response_the_answer_is_an_accepted_one() -> None:
    found = read({"question": "q", "response": "Oslo", "answer": "Paris", "id": 7})
    assert (found.id, found.answer, found.accepted) == ("7", "Oslo", ("Paris",))


@pytest.mark.parametrize(
    ("columns", "hallucinated"),
    [
        ({"label": "wrong"}, True),
        ({"label": "👍"}, False),
        ({"is_hallucinated": 1}, True),
        ({"hallucinated": 1.0}, True),
        ({"supported": "No"}, True),
        ({"thumbs": "up"}, False),
        ({"label": "", "score": 0.9}, False),
        ({"hallucinated": False}, False),
        ({"label": "Hallucinated"}, True),
        ({"correct": "yes"}, False),
        ({"score": 0.2}, True),
        ({"score": "1.0"}, False),
        ({"label": "unsure"}, None),
        ({}, None),
    ],
)
def test_labels_are_recognized(columns: dict[str, Any], hallucinated: bool | None) -> None:
    assert read({"question": "q", "answer": "a", **columns}).hallucinated is hallucinated


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"answer": "a"}, "line 4: it has no question"),
        ({"question": "q", "answer": ["a"]}, "line 4: its answer is a list, not text"),
        ({"question": "q", "answer": "\ud800"}, "its answer contains an invalid character"),
        ({"question": "\ud800", "answer": "a"}, "its question contains an invalid character"),
        ({"question": "q", "answer": "a", "context": "\ud800"}, "its context contains"),
        ({"question": "q", "answer": "a", "id": "\ud800"}, "its id contains"),
        ("q", "line 4: it is a str, not a record"),
    ],
)
def test_a_record_that_cannot_be_scored_keeps_its_place(record: object, problem: str) -> None:
    assert problem in read(record).problem


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"id": "noq", "answer": "Paris"}, ("noq", "", "Paris")),
        ({"id": 7, "question": "q", "answer": ["Paris", "Rome"]}, ("7", "q", "")),
        ({"id": "s", "question": "q", "answer": "\ud800"}, ("s", "q", "")),
        ({"id": "\ud800", "question": ["q"], "answer": "a"}, ("answers_3", "", "a")),
        ({"messages": [{"role": "user", "content": "q"}], "answer": [1]}, ("answers_3", "q", "")),
    ],
)
def test_a_record_that_cannot_be_scored_keeps_its_usable_texts(
    record: object, texts: tuple[str, str, str]
) -> None:
    found = read(record)
    assert found.problem and (found.id, found.question, found.answer) == texts


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(InputError, match="is empty: give at least one answer"):
        describe_answers(open_records([]))


def test_an_empty_answer_is_kept() -> None:
    assert read({"question": "q", "answer": None}).answer == ""
    assert read({"question": "q", "answer": None}).problem is None


def test_an_answer_without_a_question_is_shown_in_its_row() -> None:
    assert read({"question": "", "answer": "Oslo"}).answer == "Oslo"


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"question": "q", "answers": ["x"]}, "no column with answers to score .found: question"),
        ({"foo": "q", "answer": "x"}, "no column with questions .found: foo, answer"),
        (("Who wrote Emma?", "Jane Austen"), "answer 1 is a tuple: give records with"),
    ],
)
def test_records_without_questions_or_answers_are_refused(record: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        describe_answers(open_records([record]))


def test_lone_surrogates_in_kept_columns_become_question_marks() -> None:
    record = {"question": "q", "answer": "a", "n\ud800": ["x\ud800", {"y": 1}]}
    row = Row(number=0, where="line 1", record=record)
    found = read_answered(row, "answers", RowFormat(keep=("*",)))
    assert found.problem is None and found.kept == {"n?": ["x?", {"y": 1}]}
