"""Labels against 300 answers that a person labeled: 135 of the built-in model (to facts, NQ-open
and other question sets), and 165 that are written to be hard. Some are still labeled wrongly."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from clew.hallucination.labels.methods import match_answer

FILE = Path(__file__).with_name("hand_checked.csv")


@pytest.fixture(scope="module")
def labels() -> Counter[tuple[str, str]]:
    """The number of answers by (a person's label, the default method's)."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return Counter((row["label"], label(row)) for row in csv.DictReader(file))


def label(row: dict[str, str]) -> str:
    accepted = row["accepted_answers"].split(" | ")
    match = match_answer("alias", row["answer"], accepted, row["question"])
    if match.is_refused:
        return "refused"
    return "correct" if match.score else "hallucinated"


def test_the_default_method_agrees_with_a_person(labels: Counter[tuple[str, str]]) -> None:
    assert labels.total() == 300
    agreed = sum(count for (person, method), count in labels.items() if person == method)
    assert agreed / 300 >= 0.98


def test_precision_and_recall_of_correct_are_high(labels: Counter[tuple[str, str]]) -> None:
    both = labels["correct", "correct"]
    by_method = sum(count for (_, method), count in labels.items() if method == "correct")
    by_person = sum(count for (person, _), count in labels.items() if person == "correct")
    assert both / by_method >= 0.97
    assert both / by_person >= 0.97
