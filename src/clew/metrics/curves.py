"""The curves of a report, and the area under risk-coverage: what is left when one abstains."""

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from clew.metrics.checks import check_pair
from clew.metrics.thinning import thin_curve

Curve = tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, " points"]]


def roc_points(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    *,
    most: int = 200,
) -> Curve:
    """(false positive rate, true positive rate) from (0, 0) to (1, 1), at most `most` points."""
    from sklearn.metrics import roc_curve  # takes a second

    false_rate, true_rate, _ = roc_curve(*check_pair(labels, scores))
    return thin_curve(false_rate, true_rate, most)


def risk_coverage_points(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    *,
    most: int = 200,
) -> Curve:
    """(share of answers kept, share made up among them), kept from the lowest score on."""
    made_up, found = check_pair(labels, scores, both_classes=False)
    coverage = np.arange(1, len(found) + 1) / len(found)
    return thin_curve(coverage, _risks(made_up, found), most)


def area_under_risk_coverage(
    labels: Shaped[np.ndarray, " answers"], scores: Shaped[np.ndarray, " answers"]
) -> float:
    """AURC (Geifman & El-Yaniv): mean over k = 1..n of the risk among the k answers kept.

    Risk is the share made up; kept are those of the lowest scores. Less is better; scores that
    know nothing give the share of made-up answers. Equal scores: the mean over all their orders.
    """
    return float(_risks(*check_pair(labels, scores, both_classes=False)).mean())


def _risks(
    made_up: Bool[np.ndarray, " answers"], scores: Float64[np.ndarray, " answers"]
) -> Float64[np.ndarray, " answers"]:
    """The risk with 1, 2, ... n answers kept, expected over the orders of equal scores."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=made_up) / sizes
    # Of equal scores each next one is made up with the group's own share.
    expected = np.cumsum(np.repeat(share, sizes))
    return expected / np.arange(1, len(scores) + 1)
