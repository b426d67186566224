"""The built-in questions that ask for several facts."""

from pathlib import Path

import pytest

from clew.hallucination.questions import QuestionSet, collect_questions, load_questions
from tests.builders import write_lines


@pytest.fixture(scope="module")
def found() -> QuestionSet:
    return load_questions("facts-spans")


def test_every_question_names_its_parts_and_accepts_answers_for_each(found: QuestionSet) -> None:
    assert found.has_parts and len(found.questions) > 700
    for question in found.questions:
        assert len(question.parts) == len(question.answers)
        parts = dict.fromkeys(question.parts)
        assert 2 <= len(parts) <= 3
        assert all(f"the {part} is ..." in question.question.lower() for part in parts)


def test_questions_about_a_country_have_its_facts(found: QuestionSet) -> None:
    questions = {question.id: question for question in found.questions}
    peru = questions["country-spans-pe"]
    assert peru.question == (
        "What are the capital, the currency and the continent of Peru? Answer in one sentence: "
        '"The capital is ..., the currency is ... and the continent is ..."'
    )
    by_part = dict(zip(reversed(peru.parts), reversed(peru.answers), strict=True))
    assert by_part["capital"] == "Lima" and by_part["continent"] == "South America"


def test_own_questions_may_have_parts(tmp_path: Path) -> None:
    records = [
        {"question": "What are they?", "answer_parts": {"river": ["Rhine", "Rhein"], "sea": None}},
        {"question": "And these?", "answer_parts": '{"lake": "Como"}'},
        {"question": "Which?", "answer_parts": "none"},
        {"question": "Who?", "answer": "me", "answer_parts": None},
    ]
    found = collect_questions(records)
    assert [(q.answers, q.parts) for q in found.questions] == [
        (("Rhine", "Rhein"), ("river", "river")),
        (("Como",), ("lake",)),
        (("me",), ()),
    ]
    (skipped,) = found.skipped
    assert skipped.reason == "its answer_parts is neither a record nor JSON of one"
    read = load_questions(str(write_lines(tmp_path / "asked.jsonl", records)))
    assert read.questions[0].parts == ("river", "river") and read.has_parts
