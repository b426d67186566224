"""Curves for reports, thinned to a few points without a visible difference, and the area under the
risk-coverage curve (selective prediction)."""

import heapq

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from clew.base.errors import InputError
from clew.metrics.checks import check_pair

_Points = Float64[np.ndarray, "points 2"]
Curve = tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, " points"]]


def roc_points(
    labels: Shaped[np.ndarray, " samples"],
    scores: Shaped[np.ndarray, " samples"],
    *,
    most: int = 200,
) -> Curve:
    """(false positive rate, true positive rate) from (0, 0) to (1, 1), at most `most` points."""
    from sklearn.metrics import roc_curve  # slow to import

    false_rate, true_rate, _ = roc_curve(*check_pair(labels, scores))
    return thin_curve(false_rate, true_rate, most)


def risk_coverage_points(
    labels: Shaped[np.ndarray, " samples"],
    scores: Shaped[np.ndarray, " samples"],
    *,
    most: int = 200,
) -> Curve:
    """(fraction of samples kept, fraction of positives among them), keeping the lowest scores
    first."""
    positive, found = check_pair(labels, scores, both_classes=False)
    coverage = np.arange(1, len(found) + 1) / len(found)
    return thin_curve(coverage, _risks(positive, found), most)


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
