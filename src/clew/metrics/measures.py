"""The metrics of one row of a table: a method's scores on one split, at a fixed threshold; those of
samples that come in groups; and curves for reports, thinned without a visible difference."""

import heapq
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from clew.base.errors import InputError
from clew.metrics.calibration import expected_calibration_error
from clew.metrics.ranking import (
    RESAMPLES,
    auroc,
    bootstrap_auroc,
    check_pair,
    check_probabilities,
    check_threshold,
    percentile_interval,
)

_BLOCK_NUMBERS = 1 << 22  # of one block of resamples
_MOST_POINTS = 200
_Points = Float64[np.ndarray, "points 2"]
Curve = tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, " points"]]


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
    clusters: Shaped[np.ndarray, " samples"] | None = None,
) -> Measures:
    """All metrics of one split. `threshold` comes from validation (`best_threshold`); the interval
    draws whole `clusters` if there are any.

    Ranks (AUROC, AUPRC, AURC) come from `scores` if given, because extreme scores round to the same
    probability. Raises InputError for a single class and for non-finite values.
    """
    positive, found = check_probabilities(labels, probabilities)
    called = found > check_threshold(threshold)
    ranked = found if scores is None else scores
    return Measures(
        auroc=auroc(positive, ranked),
        auroc_ci=bootstrap_auroc(positive, ranked, resamples=resamples, clusters=clusters),
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
    positive_rate: float | None = None,
) -> float:
    """The probability above which predicting "positive" maximizes F1; for validation data. With
    `positive_rate`, F1 is what it would be if that share of the samples were positive.

    It lies halfway between two samples, so that rounding does not matter; of equally good
    thresholds, it is the highest. Raises InputError for a single class; with `both_classes=False`,
    one positive sample is enough.
    """
    positive, found = check_probabilities(labels, probabilities, both_classes=both_classes)
    hits, called = _count_called(positive, found)
    if positive_rate is not None:
        share = hits[-1] / called[-1]
        alarms = (called - hits) * (1 - positive_rate) / max(1 - share, 1e-12)
        hits = hits * positive_rate / share
        called = hits + alarms
    best = int(np.argmax(2 * hits / (called + hits[-1])))
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


@dataclass(frozen=True, kw_only=True)
class GroupedMeasures:
    """AUROC and recall at a false positive rate, with percentile intervals over groups."""

    auroc: float
    auroc_ci: tuple[float, float]
    recall: float
    recall_ci: tuple[float, float]


def measure_groups(
    labels: Shaped[np.ndarray, " samples"],
    scores: Shaped[np.ndarray, " samples"],
    groups: Shaped[np.ndarray, " samples"],
    *,
    false_positive_rate: float = 0.05,
) -> GroupedMeasures:
    """Measure the samples; `groups` numbers the group of each. Raises InputError for a single
    class, different lengths, or non-finite scores."""
    positive, found = check_pair(labels, scores)
    if len(groups) != len(found):
        raise InputError(f"{len(groups):,} groups for {len(found):,} samples: give one per sample")
    _, places = np.unique(groups, return_inverse=True)
    random, count = np.random.default_rng(0), int(places.max()) + 1
    order = np.argsort(-found, kind="stable")  # once: there may be a million samples
    positive, found, places = positive[order], found[order], places[order]
    drawn = [_measure(positive, found, np.ones((1, len(found)), np.int64), false_positive_rate)]
    left = RESAMPLES
    while left:
        size = min(left, max(1, _BLOCK_NUMBERS // max(count, len(found))))
        weights = random.multinomial(count, np.full(count, 1 / count), size=size)[:, places]
        has_both = weights[:, positive].any(axis=1) & weights[:, ~positive].any(axis=1)
        if has_both.any():
            drawn.append(_measure(positive, found, weights[has_both], false_positive_rate))
        left -= size
    (whole_auroc, *aurocs), (whole_recall, *recalls) = np.concatenate(drawn, axis=1)
    return GroupedMeasures(
        auroc=float(whole_auroc),
        auroc_ci=percentile_interval(aurocs or [whole_auroc]),
        recall=float(whole_recall),
        recall_ci=percentile_interval(recalls or [whole_recall]),
    )


def _measure(
    positive: Bool[np.ndarray, " samples"],
    falling: Float64[np.ndarray, " samples"],
    weights: Int64[np.ndarray, "resamples samples"],
    false_positive_rate: float,
) -> Float64[np.ndarray, "2 resamples"]:
    """AUROC and recall in every resample, of samples whose scores fall."""
    # A threshold takes all samples of the same score, or none.
    ends = np.append(np.flatnonzero(np.diff(falling)), len(falling) - 1)
    hits = np.cumsum(weights * positive, axis=1)[:, ends]
    alarms = np.cumsum(weights * ~positive, axis=1)[:, ends]
    allowed = alarms <= false_positive_rate * alarms[:, -1:] + 1e-9
    recalls = np.max(np.where(allowed, hits, 0), axis=1) / hits[:, -1]
    # The area under the steps; samples of the same score are half above each other.
    area = np.diff(alarms, axis=1, prepend=0) * (2 * hits - np.diff(hits, axis=1, prepend=0))
    aurocs = area.sum(axis=1) / (2 * hits[:, -1] * alarms[:, -1])
    return np.stack([aurocs, recalls])


def roc_points(
    labels: Shaped[np.ndarray, " samples"],
    scores: Shaped[np.ndarray, " samples"],
    *,
    most: int = _MOST_POINTS,
) -> Curve:
    """(false positive rate, true positive rate) from (0, 0) to (1, 1), at most `most` points."""
    from sklearn.metrics import roc_curve  # slow to import

    false_rate, true_rate, _ = roc_curve(*check_pair(labels, scores))
    return thin_curve(false_rate, true_rate, most)


def risk_coverage_points(
    labels: Shaped[np.ndarray, " samples"], scores: Shaped[np.ndarray, " samples"]
) -> Curve:
    """(fraction of samples kept, fraction of positives among them), keeping the lowest scores
    first; at most 200 points."""
    positive, found = check_pair(labels, scores, both_classes=False)
    coverage = np.arange(1, len(found) + 1) / len(found)
    return thin_curve(coverage, _risks(positive, found), _MOST_POINTS)


def area_under_risk_coverage(
    labels: Shaped[np.ndarray, " samples"], scores: Shaped[np.ndarray, " samples"]
) -> float:
    """AURC (Geifman & El-Yaniv): the mean over k = 1..n of the risk among the k samples kept.

    Risk is the fraction of positives; the lowest scores are kept first. Lower is better;
    uninformative scores give the fraction of positives. Ties count as the mean over all their
    orders.
    """
    return float(_risks(*check_pair(labels, scores, both_classes=False)).mean())


def _risks(
    positive: Bool[np.ndarray, " samples"], scores: Float64[np.ndarray, " samples"]
) -> Float64[np.ndarray, " samples"]:
    """The risk with 1, 2, ... n samples kept, in expectation over the orders of tied scores."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=positive) / sizes
    # Among tied scores, each next one is positive with the group's own rate.
    expected = np.cumsum(np.repeat(share, sizes))
    return expected / np.arange(1, len(scores) + 1)


def thin_curve(
    x: Float64[np.ndarray, " points"], y: Float64[np.ndarray, " points"], most: int
) -> tuple[Float64[np.ndarray, " kept"], Float64[np.ndarray, " kept"]]:
    """At most `most` of the points, including both ends: repeatedly adds the point farthest from
    the line drawn so far (Douglas & Peucker), until none lies off it."""
    if most < 2:
        raise InputError(f"most is {most}: a curve requires at least 2 points")
    kept = _choose(np.column_stack([x, y]), most)
    return x[kept], y[kept]


def _choose(points: _Points, most: int) -> Int64[np.ndarray, " kept"]:
    kept = {0, len(points) - 1}
    waiting = [_farthest(points, 0, len(points) - 1)]
    while len(kept) < most and waiting:
        distance, start, middle, end = heapq.heappop(waiting)
        if distance == 0:  # negated, so that the farthest comes first
            break
        kept.add(middle)
        heapq.heappush(waiting, _farthest(points, start, middle))
        heapq.heappush(waiting, _farthest(points, middle, end))
    return np.array(sorted(kept))


def _farthest(points: _Points, start: int, end: int) -> tuple[float, int, int, int]:
    """(negative distance, start, index, end) of the point farthest from the line between the
    two."""
    if end - start < 2:
        return 0.0, start, start, end
    line = points[end] - points[start]
    away = points[start + 1 : end] - points[start]
    length = float(np.hypot(*line))
    off = np.abs(line[0] * away[:, 1] - line[1] * away[:, 0]) / length if length else None
    distances = np.hypot(*away.T) if off is None else off
    best = int(distances.argmax())
    return -float(distances[best]), start, start + 1 + best, end
