"""A promised error rate holds as often as it says, and is made where that is possible."""

import numpy as np
import pytest
from scipy.stats import binom

from clew.base.errors import InputError
from clew.metrics.promise import (
    choose_count,
    least_max_wrong,
    share_interval,
    shown_curve,
    threshold_after,
    times_needed,
)

ANSWERS, LABELS, DRAWS = 2000, 500, 200
# How often 200 draws may fail if each does with 5%: beyond it, fewer than 1 in 10,000 would.
MOST_FAILURES = int(binom.ppf(0.9999, DRAWS, 0.05))
SHAPES = {
    "good": (0.4, 2.0, 0.0),
    "weak": (0.4, 0.9, 0.0),
    "mostly wrong": (0.6, 1.8, 0.0),
    "mostly correct": (0.1, 1.2, 0.0),
    "confident errors": (0.5, 2.0, 0.15),
    "at chance, exactly at the limit": (0.2, 0.0, 0.0),
}


def draw_population(wrong: float, apart: float, confident: float) -> tuple[np.ndarray, np.ndarray]:
    """Answers whose risk is higher by `apart` standard deviations if they are wrong, except for a
    share of `confident` errors, which have the lowest."""
    random = np.random.default_rng(3)
    labels = np.arange(ANSWERS) < wrong * ANSWERS
    scores = random.standard_normal(ANSWERS) + apart * labels
    scores[: int(confident * labels.sum())] = -2.0
    return labels.astype(int), 1 / (1 + np.exp(-scores))


def best_share(labels: np.ndarray, risks: np.ndarray, limit: float) -> float:
    counts, wrong = shown_curve(labels, risks)
    return max(counts[wrong <= limit], default=0) / len(labels)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decimals", [1, 12], ids=["tied", "distinct"])
def test_promise_fails_no_more_often_than_its_confidence_says(shape: str, decimals: int) -> None:
    labels, risks = draw_population(*SHAPES[shape])
    risks, random = np.round(risks, decimals), np.random.default_rng(0)
    for limit in (0.1, 0.2, 0.3):
        failures = 0
        for _ in range(DRAWS):
            rows = random.integers(0, ANSWERS, LABELS)
            count = choose_count(labels[rows], risks[rows], max_wrong=limit, confidence=0.95)
            shown = risks <= threshold_after(risks[rows], count) if count else np.zeros(1, bool)
            failures += bool(shown.any()) and labels[shown].mean() > limit
        assert failures <= MOST_FAILURES, (limit, failures)


@pytest.mark.parametrize(("shape", "limit"), [("good", 0.2), ("mostly wrong", 0.3)])
def test_promise_is_made_where_it_can_be_and_shows_nearly_as_much(shape: str, limit: float) -> None:
    labels, risks = draw_population(*SHAPES[shape])
    best, random, shares = best_share(labels, risks, limit), np.random.default_rng(0), []
    for _ in range(100):
        rows = random.integers(0, ANSWERS, LABELS)
        count = choose_count(labels[rows], risks[rows], max_wrong=limit, confidence=0.95)
        shares.append((risks <= threshold_after(risks[rows], count)).mean() if count else 0)
    made = [share for share in shares if share]
    assert best > 0.3 and len(made) >= 80
    assert best - 0.1 <= np.mean(made) <= best


def test_too_few_labels_promise_nothing() -> None:
    """Of 28 correct answers, 10% may still be wrong: 0.9**28 > 0.05 > 0.9**29."""
    for count, shown in ((0, 0), (28, 0), (29, 29)):
        labels, risks = np.zeros(count, int), np.linspace(0, 0.5, count)
        assert choose_count(labels, risks, max_wrong=0.1, confidence=0.95) == shown


def test_answers_with_the_same_risk_are_shown_together() -> None:
    risks = np.array([0.2] * 60 + [0.4] * 40)
    labels = np.array([0] * 60 + [1] * 40)
    assert choose_count(labels, risks, max_wrong=0.1, confidence=0.95) == 60
    # The answers below the first that is not shown are those that the test is about.
    assert 0.4 > threshold_after(risks, 60) == pytest.approx(0.4)
    assert choose_count(labels[::-1], risks, max_wrong=0.1, confidence=0.95) == 0
    assert threshold_after(risks, 100) == 1


def test_refusal_says_what_could_be_promised_and_what_it_takes() -> None:
    labels, risks = draw_population(*SHAPES["good"])
    few = slice(None, None, 20)
    assert choose_count(labels[few], risks[few], max_wrong=0.05, confidence=0.95) == 0
    least = least_max_wrong(labels[few], risks[few], confidence=0.95)
    assert least is not None and 0.05 < least < 0.3
    assert choose_count(labels[few], risks[few], max_wrong=least, confidence=0.95)
    times = times_needed(labels[few], risks[few], max_wrong=0.05, confidence=0.95)
    assert times is not None and times > 1
    assert times_needed(1 - labels, risks, max_wrong=0.05, confidence=0.95) is None
    assert least_max_wrong(np.ones(500), risks[:500], confidence=0.95) is None


def test_interval_of_a_share_is_exact() -> None:
    assert share_interval(0, 10, 0.95) == pytest.approx((0, 0.3085), abs=1e-4)
    assert share_interval(10, 10, 0.95) == pytest.approx((0.6915, 1), abs=1e-4)
    assert share_interval(5, 10, 0.95) == pytest.approx((0.1871, 0.8129), abs=1e-4)


@pytest.mark.parametrize("values", [(0, 0.95), (0.1, 1), (float("nan"), 0.95)])
def test_impossible_promises_are_refused(values: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        choose_count(np.ones(3), np.ones(3), max_wrong=values[0], confidence=values[1])
