"""Questions from Python: dicts, strings, DataFrames and datasets."""

from typing import Any

import pandas
import polars
import pytest
from datasets import Dataset

from clew.base.errors import InputError
from clew.hallucination.questions import collect_questions

COLUMNS = {"question": ["Who wrote Emma?", "And Persuasion?"], "answer": ["Jane Austen"] * 2}


@pytest.mark.parametrize(
    "given",
    [
        pandas.DataFrame(COLUMNS),
        polars.DataFrame(COLUMNS),
        Dataset.from_dict(COLUMNS),
        [{"question": q, "answer": a} for q, a in zip(*COLUMNS.values(), strict=True)],
    ],
    ids=["pandas", "polars", "dataset", "dicts"],
)
def test_rows_become_questions(given: Any) -> None:
    found = collect_questions(given).questions
    assert [(one.question, one.answers) for one in found] == [
        ("Who wrote Emma?", ("Jane Austen",)),
        ("And Persuasion?", ("Jane Austen",)),
    ]


@pytest.mark.parametrize("make", [list, pandas.Series, polars.Series])
def test_strings_are_questions_without_accepted_answers(make: Any) -> None:
    found = collect_questions(make(COLUMNS["question"])).questions
    assert [(one.question, one.answers) for one in found] == [
        ("Who wrote Emma?", ()),
        ("And Persuasion?", ()),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "the list of questions is empty: give at least one question"),
        ([3], "it is a int, not a record with named fields): give dicts with a question, or str"),
        (
            {"question": "Why?"},
            "`questions` has the type dict: give a file name, a list of dicts ",
        ),
        (3, "`questions` has the type int: give a file name"),
    ],
    ids=["none", "numbers", "one dict", "a number"],
)
def test_other_objects_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        collect_questions(given)
    assert message in str(error.value)
