"""The metrics of a classifier in words."""

import io
from typing import Any

import pytest
from rich.console import Console

from clew.cli.patterns.training import print_doubt

DOUBT = 'not clearly better than always predicting "dog" (60.0%): more photos'


def reached(accuracy: float, low: float) -> dict[str, Any]:
    classes = [{"class": "cat", "test": 4}, {"class": "dog", "test": 6}]
    return {
        "test_accuracy": accuracy,
        "test_accuracy_ci": (low, 1.0),
        "test_photos": 10,
        "per_class": classes,
    }


@pytest.mark.parametrize(
    ("results", "is_reported"),
    [(reached(0.6, 0.31), True), (reached(0.9, 0.61), False), (reached(1.0, 0.59), False)],
)
def test_classifier_no_better_than_a_constant_guess_is_reported(
    results: dict[str, Any], is_reported: bool
) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_doubt(console, results)
    assert isinstance(console.file, io.StringIO)
    assert (DOUBT in console.file.getvalue()) is is_reported
