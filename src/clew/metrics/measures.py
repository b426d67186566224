"""The figures of one row of a table: a method's scores on one split, at a fixed threshold."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Shaped

from clew.metrics.calibration import expected_calibration_error
from clew.metrics.checks import check_probabilities, check_threshold
from clew.metrics.curves import area_under_risk_coverage
from clew.metrics.ranking import RESAMPLES, auroc, bootstrap_auroc


@dataclass(frozen=True, kw_only=True)
class Measures:
    """How good scores are; made up is the positive class."""

    auroc: float
    auroc_ci: tuple[float, float]  # 95%, bootstrap
    auprc: float  # average precision
    f1: float
    accuracy: float
    ece: float
    aurc: float
    threshold: float  # made up is said above it


def measure_scores(
    labels: Shaped[np.ndarray, " answers"],
    probabilities: Shaped[np.ndarray, " answers"],
    *,
    threshold: float,
    scores: Shaped[np.ndarray, " answers"] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Measures:
    """All figures of one split. `threshold` comes from validation (`best_threshold`).

    Ranks (AUROC, AUPRC, AURC) are those of `scores` where given: as probabilities, far scores
    round to the same number. Raises InputError for one class only and for what is no number.
    """
    from sklearn.metrics import accuracy_score, average_precision_score, f1_score  # takes a second

    made_up, found = check_probabilities(labels, probabilities)
    called = found > check_threshold(threshold)
    ranked = found if scores is None else scores
    return Measures(
        auroc=auroc(made_up, ranked),
        auroc_ci=bootstrap_auroc(made_up, ranked, resamples=resamples, seed=seed),
        auprc=float(average_precision_score(made_up, ranked)),
        f1=float(f1_score(made_up, called, zero_division=0.0)),
        accuracy=float(accuracy_score(made_up, called)),
        ece=expected_calibration_error(made_up, found),
        aurc=area_under_risk_coverage(made_up, ranked),
        threshold=float(threshold),
    )


def best_threshold(
    labels: Shaped[np.ndarray, " answers"],
    probabilities: Shaped[np.ndarray, " answers"],
    *,
    both_classes: bool = True,
) -> float:
    """The probability above which "made up" is said so that F1 is greatest: for validation.

    Halfway between two answers, so that rounding decides nothing; the highest of equally good.
    Raises InputError for one class only, unless that is allowed: F1 needs but a positive one.
    """
    made_up, found = check_probabilities(labels, probabilities, both_classes=both_classes)
    values, group = np.unique(-found, return_inverse=True)  # highest first
    hits = np.cumsum(np.bincount(group, weights=made_up))
    called = np.cumsum(np.bincount(group))
    best = int(np.argmax(2 * hits / (called + np.count_nonzero(made_up))))
    return _halfway(-values, best)


def _halfway(values: Float64[np.ndarray, " falling"], place: int) -> float:
    """A number below the value at `place` and not below the next."""
    value = float(values[place])
    end = 0.0 if value > 0 else -1.0
    following = float(values[place + 1]) if place + 1 < len(values) else end
    middle = (value + following) / 2
    return middle if middle < value else following
