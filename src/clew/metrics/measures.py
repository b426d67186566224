"""The metrics of one row of a table: a method's scores on one split, at a fixed threshold."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from clew.metrics.calibration import expected_calibration_error
from clew.metrics.checks import check_probabilities, check_threshold
from clew.metrics.curves import area_under_risk_coverage
from clew.metrics.ranking import RESAMPLES, auroc, bootstrap_auroc


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The metrics of one method on one split; label 1 is the positive class."""

    auroc: float
    auroc_ci: tuple[float, float]  # 95%, bootstrap
    auprc: float  # average precision
    f1: float
    accuracy: float
    ece: float  # 10 bins of equal mass
    aurc: float
    threshold: float  # predicted positive above it


def measure_scores(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    threshold: float,
    scores: Shaped[np.ndarray, " samples"] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Measures:
    """All metrics of one split. `threshold` comes from validation (`best_threshold`).

    Ranks (AUROC, AUPRC, AURC) come from `scores` if given, because extreme scores round to the same
    probability. Raises InputError for a single class and for non-finite values.
    """
    positive, found = check_probabilities(labels, probabilities)
    called = found > check_threshold(threshold)
    ranked = found if scores is None else scores
    return Measures(
        auroc=auroc(positive, ranked),
        auroc_ci=bootstrap_auroc(positive, ranked, resamples=resamples, seed=seed),
        auprc=average_precision(positive, ranked),
        f1=2 * float((positive & called).sum()) / float(positive.sum() + called.sum()),
        accuracy=float(np.mean(positive == called)),
        ece=expected_calibration_error(positive, found),
        aurc=area_under_risk_coverage(positive, ranked),
        threshold=float(threshold),
    )


def average_precision(
    positive: Bool[np.ndarray, " samples"], scores: Shaped[np.ndarray, " samples"]
) -> float:
    """The mean precision over the positive samples, each at the threshold that just includes it;
    tied scores are included together. At least one sample is positive."""
    hits, called = _count_called(positive, scores)
    return float(np.sum(np.diff(hits, prepend=0.0) * hits / called) / hits[-1])


def _count_called(
    positive: Bool[np.ndarray, " samples"], scores: Shaped[np.ndarray, " samples"]
) -> tuple[Float64[np.ndarray, " values"], Int64[np.ndarray, " values"]]:
    """With each distinct score as the threshold, the highest first: how many positive samples reach
    it, and how many samples."""
    _, group = np.unique(-np.asarray(scores), return_inverse=True)
    return np.cumsum(np.bincount(group, weights=positive)), np.cumsum(np.bincount(group))


def best_threshold(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    both_classes: bool = True,
) -> float:
    """The probability above which predicting "positive" maximizes F1; for validation data.

    It lies halfway between two samples, so that rounding does not matter; of equally good
    thresholds, it is the highest. Raises InputError for a single class; with `both_classes=False`,
    one positive sample is enough.
    """
    positive, found = check_probabilities(labels, probabilities, both_classes=both_classes)
    hits, called = _count_called(positive, found)
    best = int(np.argmax(2 * hits / (called + np.count_nonzero(positive))))
    return _halfway(-np.unique(-found), best)


def threshold_for_rate(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    false_positive_rate: float,
) -> float:
    """The probability above which at most this share of negative samples lies, also of new ones: as
    in conformal prediction, a finite sample leaves a margin. 1 if there are too few negatives."""
    positive, found = check_probabilities(labels, probabilities)
    negatives = np.sort(found[~positive])
    place = int(np.ceil((1 - false_positive_rate) * (len(negatives) + 1))) - 1
    return float(negatives[place]) if place < len(negatives) else 1.0


def _halfway(values: Float64[np.ndarray, " falling"], place: int) -> float:
    """A number below the value at `place` and not below the next."""
    value = float(values[place])
    end = 0.0 if value > 0 else -1.0
    following = float(values[place + 1]) if place + 1 < len(values) else end
    middle = (value + following) / 2
    return middle if middle < value else following
