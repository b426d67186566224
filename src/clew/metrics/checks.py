"""Labels and scores are looked at before anything is computed from them."""

import math

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from clew.errors import InputError


def check_scores(scores: Shaped[np.ndarray, " answers"]) -> Float64[np.ndarray, " answers"]:
    """Scores as float64. Raises InputError where they are not finite numbers in a row."""
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1:
        raise InputError(f"scores of shape {found.shape}: give one score an answer, in one row")
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InputError(
            f"{len(bad):,} of {len(found):,} scores are no finite numbers (the first is "
            f"{found[bad[0]]} at place {bad[0]}): leave these answers out, or mend the method"
        )
    return found


def check_pair(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    *,
    both_classes: bool = True,
) -> tuple[Bool[np.ndarray, " answers"], Float64[np.ndarray, " answers"]]:
    """Which answers are made up, and their scores as float64; InputError for what does not fit."""
    made_up, found = _check_labels(labels), check_scores(scores)
    if len(made_up) != len(found):
        raise InputError(
            f"{len(made_up):,} labels and {len(found):,} scores: give one of each an answer"
        )
    if not len(made_up):
        raise InputError("there are no answers to measure: give at least one of each class")
    if both_classes and made_up.all() == made_up.any():
        raise InputError(
            f"all {len(made_up):,} answers are {'made up' if made_up.all() else 'right'}: ranking "
            f"needs both classes, so use more questions or another split"
        )
    return made_up, found


def check_probabilities(
    labels: Shaped[np.ndarray, " answers"],
    probabilities: Shaped[np.ndarray, " answers"],
    *,
    both_classes: bool = True,
) -> tuple[Bool[np.ndarray, " answers"], Float64[np.ndarray, " answers"]]:
    """As `check_pair`, for scores that must lie from 0 to 1."""
    made_up, found = check_pair(labels, probabilities, both_classes=both_classes)
    low, high = float(found.min()), float(found.max())
    if low < 0 or high > 1:
        raise InputError(
            f"probabilities from {low:g} to {high:g} do not lie from 0 to 1: scale the scores "
            f"first (PlattScale)"
        )
    return made_up, found


def check_threshold(threshold: float) -> float:
    if math.isnan(threshold):
        raise InputError("the threshold is nan: choose it with best_threshold on validation")
    return threshold


def check_count(name: str, count: int) -> int:
    if count < 1:
        raise InputError(f"{name} is {count}: give at least 1")
    return count


def _check_labels(labels: Shaped[np.ndarray, " answers"]) -> Bool[np.ndarray, " answers"]:
    found = np.asarray(labels)
    if found.ndim != 1:
        raise InputError(f"labels of shape {found.shape}: give one label an answer, in one row")
    made_up = found == 1
    other = found[~made_up & (found != 0)]
    if len(other):
        raise InputError(
            f"{other[0]} is no label: give 1 for a made-up answer and 0 for a right one"
        )
    return made_up
