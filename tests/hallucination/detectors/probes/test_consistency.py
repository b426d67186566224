"""Answers that the model does not repeat are risky."""

import math

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.baselines import disagreement, rarest_word
from clew.hallucination.detectors.probes.registry import PROBES
from tests.hallucination.detectors.probes.features import MemoryFeatures

ASKED = "What is the capital of France?"


@pytest.mark.parametrize(
    ("answer", "samples", "share"),
    [
        ("Paris", ["It's Paris!", "The capital of France is Paris.", "paris"], 0),
        ("Paris", ["Lyon", "Paris", "Marseille", "Paris, in the north"], 0.5),
        ("Jane Austen", ["Austen", "Emily Bronte"], 0.5),
        ("", ["Paris", ""], 0.5),
    ],
)
def test_disagreement_is_the_share_of_draws_with_another_meaning(
    answer: str, samples: list[str], share: float
) -> None:
    assert disagreement(ASKED, answer, samples) == share


def test_the_rarest_word_of_an_answer_decides() -> None:
    draws = ["Jane Austen", "Austen", "Jane Austen"]
    # Of the seven words said, one is "Emily".
    assert rarest_word("Who?", "Emily Austen", draws) == pytest.approx(math.log(7))
    assert rarest_word("Who?", "Austen", draws) == pytest.approx(math.log(6 / 4))
    assert rarest_word(ASKED, "The capital of France is Paris.", ["Paris"]) == 0
    assert rarest_word("Who?", "", draws) == pytest.approx(math.log(6))


@pytest.mark.parametrize("name", ["consistency", "selfcheck_ngram"])
def test_answers_without_draws_get_the_median_of_training(name: str) -> None:
    answers = [["Rome"], ["Rome", "Oslo"], ["Oslo"], None, None] * 4
    values = {"samples": answers, "question": ["Where?"] * 20, "answer": ["Rome"] * 20}
    outcome = PROBES[name].run(MemoryFeatures(np.tile([0, 1], 10), values), seed=0)
    rome, both, oslo, none, other = (
        outcome.test[-5:]
        if len(outcome.test) > 4
        else [
            *outcome.validation[-1:],
            *outcome.test,
        ]
    )
    assert rome <= both <= oslo and none == other == both


@pytest.mark.parametrize("name", ["consistency", "selfcheck_ngram"])
def test_draws_that_all_agree_carry_no_information(name: str) -> None:
    values = {"samples": [["Rome"]] * 20, "question": ["Where?"] * 20, "answer": ["Rome"] * 20}
    with pytest.raises(InputError, match="carries no information: draw more answers"):
        PROBES[name].fit(MemoryFeatures(np.tile([0, 1], 10), values), seed=0)
