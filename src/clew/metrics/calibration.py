"""Whether probabilities mean what they say: calibration error, and the points of its diagram."""

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from clew.metrics.checks import check_count, check_probabilities


def expected_calibration_error(
    labels: Shaped[np.ndarray, " answers"],
    probabilities: Shaped[np.ndarray, " answers"],
    *,
    bins: int = 15,
) -> float:
    """ECE of Guo et al. (2017): sum over bins of share of answers * |share made up - mean p|.

    The binary form on the probability of the positive class, "made up", as torchmetrics'
    `binary_calibration_error(norm="l1")`: bins of equal width over [0, 1], each with its upper
    border. (Not the form on the confidence in whichever class is called.)
    """
    predicted, share, counts = calibration_points(labels, probabilities, bins=bins)
    return float(np.sum(counts * np.abs(share - predicted)) / counts.sum())


def calibration_points(
    labels: Shaped[np.ndarray, " answers"],
    probabilities: Shaped[np.ndarray, " answers"],
    *,
    bins: int = 15,
) -> tuple[
    Float64[np.ndarray, " filled"], Float64[np.ndarray, " filled"], Int64[np.ndarray, " filled"]
]:
    """(mean probability, share made up, answers) of every bin that holds an answer."""
    made_up, found = check_probabilities(labels, probabilities, both_classes=False)
    borders = np.linspace(0, 1, check_count("bins", bins) + 1)
    place = np.searchsorted(borders[1:-1], found, side="left")
    counts = np.bincount(place, minlength=bins)
    filled = counts > 0
    predicted = np.bincount(place, weights=found, minlength=bins)[filled] / counts[filled]
    share = np.bincount(place, weights=made_up, minlength=bins)[filled] / counts[filled]
    return predicted, share, counts[filled]
