"""Checks of labels and scores before anything is computed from them."""

import math

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from clew.base.errors import InputError


def check_scores(scores: Shaped[np.ndarray, " samples"]) -> Float64[np.ndarray, " samples"]:
    """Scores as float64. Raises InputError unless they are a 1-D array of finite numbers."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1:
        raise InputError(f"scores of shape {found.shape}: give a 1-D array, one score per sample")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InputError(
            f"{len(bad):,} of {len(found):,} scores are non-finite (the first is "
            f"{found[bad[0]]} at index {bad[0]}): exclude these samples, or fix the method"
        )
    return found


def check_pair(
    labels: Shaped[np.ndarray, " samples"],
    scores: Shaped[np.ndarray, " samples"],
    *,
    both_classes: bool = True,
) -> tuple[Bool[np.ndarray, " samples"], Float64[np.ndarray, " samples"]]:
    """Labels as booleans (True is positive) and scores as float64.

    Raises InputError if their lengths differ, if there are none, or if a class is missing and
    `both_classes` is set.
    """
    positive, found = _check_labels(labels), check_scores(scores)
    if len(positive) != len(found):
        raise InputError(
            f"{len(positive):,} labels and {len(found):,} scores: give one of each per sample"
        )
    if not len(positive):
        raise InputError("there are no samples to evaluate: give at least one of each class")
    if both_classes and positive.all() == positive.any():
        raise InputError(
            f"all {len(positive):,} samples are {'positive' if positive.all() else 'negative'}: "
            "ranking metrics require both classes; use more data or another split"
        )
    return positive, found


def check_probabilities(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    both_classes: bool = True,
) -> tuple[Bool[np.ndarray, " samples"], Float64[np.ndarray, " samples"]]:
    """Like `check_pair`, for scores that must lie between 0 and 1."""
    positive, found = check_pair(labels, probabilities, both_classes=both_classes)
    low, high = float(found.min()), float(found.max())
    if low < 0 or high > 1:
        raise InputError(
            f"probabilities range from {low:g} to {high:g}, outside 0 to 1: scale the "
            "scores first (PlattScale)"
        )
    return positive, found


def check_threshold(threshold: float) -> float:
    if math.isnan(threshold):
        raise InputError("the threshold is NaN: choose it with best_threshold on validation data")
    return threshold


def check_count(name: str, count: int) -> int:
    if count < 1:
        raise InputError(f"{name} is {count}: give at least 1")
    return count


def _check_labels(labels: Shaped[np.ndarray, " samples"]) -> Bool[np.ndarray, " samples"]:
    found = np.asarray(labels)
    if found.ndim != 1:
        raise InputError(f"labels of shape {found.shape}: give a 1-D array, one label per sample")
    positive = found == 1
    other = found[~positive & (found != 0)]
    if len(other):
        raise InputError(
            f"{other[0]} is not a label: give 1 for positive and 0 for negative samples"
        )
    return positive
