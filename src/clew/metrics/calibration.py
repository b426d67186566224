"""Calibration error and the points of its reliability diagram, and Platt scaling, which turns
scores of any scale into probabilities."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from clew.metrics.ranking import check_count, check_pair, check_probabilities, check_scores

# Minimum slope, for scores in units of their spread. It is positive, so that a method that ranks
# the wrong way round keeps its order (the direction is fixed beforehand) and gets nearly equal
# probabilities.
_LEAST_SLOPE = 1e-3
# Distance from the median, in spreads, beyond which scores are compressed logarithmically.
_FAR = 3.0
# Probabilities of 0 and 1 have no logit.
_SURE = 1e-9


def expected_calibration_error(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    bins: int = 10,
    equal_mass: bool = True,
) -> float:
    """Expected calibration error (Guo et al., 2017): the sum over bins of fraction of samples *
    |fraction of positives - mean p|.

    The binary form on the probability of the positive class, not on the confidence in the predicted
    class. Every bin has as many samples (Nixon et al., 2019), so that no bin is decided by a few.
    Without `equal_mass`, bins have equal width over [0, 1], each including its upper edge, as in
    torchmetrics' `binary_calibration_error(norm="l1")`.
    """
    predicted, share, counts = calibration_points(
        labels, probabilities, bins=bins, equal_mass=equal_mass
    )
    return float(np.sum(counts * np.abs(share - predicted)) / counts.sum())


def calibration_points(
    labels: Shaped[np.ndarray, " samples"],
    probabilities: Shaped[np.ndarray, " samples"],
    *,
    bins: int = 10,
    equal_mass: bool = True,
) -> tuple[
    Float64[np.ndarray, " filled"], Float64[np.ndarray, " filled"], Int64[np.ndarray, " filled"]
]:
    """(mean probability, fraction of positives, samples) of every nonempty bin. Equal probabilities
    are in one bin, also with `equal_mass`."""
    positive, found = check_probabilities(labels, probabilities, both_classes=False)
    borders = np.linspace(0, 1, check_count("bins", bins) + 1)
    if equal_mass:
        borders = np.quantile(found, borders)
    place = np.searchsorted(borders[1:-1], found, side="left")
    counts = np.bincount(place, minlength=bins)
    filled = counts > 0
    predicted = np.bincount(place, weights=found, minlength=bins)[filled] / counts[filled]
    share = np.bincount(place, weights=positive, minlength=bins)[filled] / counts[filled]
    return predicted, share, counts[filled]


@dataclass(frozen=True, kw_only=True)
class PlattScale:
    """p = sigmoid(slope * z + intercept), where z is the score in units of the validation
    spread."""

    slope: float
    intercept: float
    middle: float
    spread: float

    @classmethod
    def fit(
        cls, labels: Shaped[np.ndarray, " samples"], scores: Shaped[np.ndarray, " samples"]
    ) -> Self:
        """Fits by maximum likelihood with Platt's smoothed targets, so that perfectly separated
        classes still give a finite slope. Raises InputError when only one class is present."""
        positive, found = check_pair(labels, scores)
        middle, spread = _find_spread(found)
        slope, intercept = _fit_sigmoid(positive, _standardize(found, middle, spread))
        return cls(slope=slope, intercept=intercept, middle=middle, spread=spread)

    def refit(
        self,
        labels: Shaped[np.ndarray, " samples"],
        probabilities: Shaped[np.ndarray, " samples"],
    ) -> Self:
        """The same scale with another slope and intercept, for other samples to which it gave these
        probabilities. Raises InputError when only one class is present."""
        positive, found = check_probabilities(labels, probabilities)
        slope, intercept = _fit_sigmoid(positive, self._undo(found))
        return replace(self, slope=slope, intercept=intercept)

    def convert(
        self, probabilities: Shaped[np.ndarray, " samples"], other: "PlattScale"
    ) -> Float64[np.ndarray, " samples"]:
        """The probabilities that `other`, a refit of this scale, gives to the samples to which this
        one gave these."""
        from scipy.special import expit  # slow to import

        return expit(other.slope * self._undo(probabilities) + other.intercept)

    def _undo(self, probabilities: np.ndarray) -> Float64[np.ndarray, " samples"]:
        """The standardized scores behind probabilities."""
        sure = np.clip(probabilities, _SURE, 1 - _SURE)
        return (np.log(sure / (1 - sure)) - self.intercept) / self.slope

    def probabilities(
        self, scores: Shaped[np.ndarray, " samples"]
    ) -> Float64[np.ndarray, " samples"]:
        """Probabilities in the order of the scores. Extreme ones round to the same number, so
        compute ranks (AUROC) from the scores."""
        from scipy.special import expit  # slow to import

        placed = _standardize(check_scores(scores), self.middle, self.spread)
        return expit(self.slope * placed + self.intercept)


def _find_spread(scores: Float64[np.ndarray, " samples"]) -> tuple[float, float]:
    """The median and the interquartile range, which a few outliers do not move."""
    unit = float(np.abs(scores).max()) or 1.0  # so that no difference overflows
    low, middle, high = np.quantile(scores / unit, [0.25, 0.5, 0.75])
    spread = high - low
    if not spread:  # most scores are equal
        spread = np.abs(scores / unit - middle).mean() or 1.0
    return float(middle) * unit, float(spread) * unit


def _standardize(
    scores: Float64[np.ndarray, " samples"], middle: float, spread: float
) -> Float64[np.ndarray, " samples"]:
    """Linear near the middle, logarithmic far out: otherwise one outlier of 1e6 would flatten the
    probabilities of all other samples."""
    placed = scores / spread - middle / spread
    beyond = np.maximum(np.abs(placed) - _FAR, 0)
    return np.clip(placed, -_FAR, _FAR) + np.sign(placed) * np.log1p(beyond)


def _fit_sigmoid(
    positive: Bool[np.ndarray, " samples"], placed: Float64[np.ndarray, " samples"]
) -> tuple[float, float]:
    from scipy.optimize import minimize  # slow to import
    from scipy.special import expit

    positives, negatives = np.count_nonzero(positive), np.count_nonzero(~positive)
    targets = np.where(positive, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(
        weights: Float64[np.ndarray, "2"],
    ) -> tuple[float, Float64[np.ndarray, "2"]]:
        logits = weights[0] * placed + weights[1]
        wrong = (expit(logits) - targets) / len(placed)
        value = float(np.mean(np.logaddexp(0, logits) - targets * logits))
        return value, np.array([wrong @ placed, wrong.sum()])

    start = np.array([1.0, np.log(positives / negatives)])
    bounds = [(_LEAST_SLOPE, None), (None, None)]
    options = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 1000}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(found.x[0]), float(found.x[1])
