"""AUROC, and what chance does to it: bootstrap intervals, and whether two methods differ."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int32, Shaped

from clew.errors import InputError
from clew.metrics.checks import check_count, check_pair

RESAMPLES = 1000
_BLOCK_NUMBERS = 1 << 20  # of one block of resamples: what the cache holds is quick


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much greater the AUROC of one method is than another's, on the same answers."""

    difference: float
    low: float
    high: float
    p_value: float  # two-sided; at least 2 / (resamples + 1)


def auroc(labels: Shaped[np.ndarray, " answers"], scores: Shaped[np.ndarray, " answers"]) -> float:
    """The chance that a made-up answer's score is above a right one's; equal ones count half.

    Raises InputError for one class only, other lengths, or scores that are no numbers.
    """
    made_up, found = check_pair(labels, scores)
    return float(_weighted_aurocs(made_up, found, np.ones((1, len(found)), np.int32))[0])


def draw_resamples(
    labels: Shaped[np.ndarray, " answers"], *, resamples: int = RESAMPLES, seed: int = 0
) -> Int32[np.ndarray, "resamples answers"]:
    """How often each answer is drawn in each resample. The same for the same labels and seed, so
    that all methods on a split share them."""
    made_up, _ = check_pair(labels, labels)
    check_count("resamples", resamples)
    random = np.random.default_rng(seed)
    counts = np.zeros((resamples, len(made_up)), np.int32)
    # Each class is drawn by itself. AUROC does not depend on the share of made-up answers, so
    # that share's own chance has no place in the interval; no resample lacks a class, whereas
    # to draw again until both are there would favour some samples; and the mean over resamples
    # is the AUROC itself, so that the percentiles lie around it.
    for places in (np.flatnonzero(made_up), np.flatnonzero(~made_up)):
        counts[:, places] = _draw_counts(random, resamples, len(places))
    return counts


def bootstrap_aurocs(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    counts: Int32[np.ndarray, "resamples answers"],
) -> Float64[np.ndarray, " resamples"]:
    """The AUROC in every resample of `draw_resamples`."""
    made_up, found = check_pair(labels, scores)
    if counts.ndim != 2 or counts.shape[1] != len(found):
        raise InputError(
            f"resamples of shape {counts.shape} for {len(found):,} answers: draw them with "
            f"draw_resamples from the same labels"
        )
    blocks = np.array_split(counts, max(1, math.ceil(counts.size / _BLOCK_NUMBERS)))
    return np.concatenate([_weighted_aurocs(made_up, found, block) for block in blocks])


def bootstrap_auroc(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval (low, high) of the AUROC.

    Few answers of a class make it too narrow: on binormal scores a 95% interval holds the true
    value in about 94% of data sets with 100 of each class; with 60, 30 and 10 of the rarer one
    in 93%, 92% and 86%. Where the scores part the classes, both ends are 1.
    """
    counts = draw_resamples(labels, resamples=resamples, seed=seed)
    return _interval(bootstrap_aurocs(labels, scores, counts), level)


def compare_paired(
    labels: Shaped[np.ndarray, " answers"],
    scores: Shaped[np.ndarray, " answers"],
    other: Shaped[np.ndarray, " answers"],
    *,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """AUROC of `scores` minus that of `other`, both in the same resamples."""
    counts = draw_resamples(labels, resamples=resamples, seed=seed)
    changes = bootstrap_aurocs(labels, scores, counts) - bootstrap_aurocs(labels, other, counts)
    low, high = _interval(changes, level)
    return Difference(
        difference=auroc(labels, scores) - auroc(labels, other),
        low=low,
        high=high,
        p_value=_two_sided(changes),
    )


def _draw_counts(
    random: np.random.Generator, resamples: int, size: int
) -> Int32[np.ndarray, "resamples size"]:
    counts = np.empty((resamples, size), np.int32)
    rows = max(1, _BLOCK_NUMBERS // size)
    for block in (counts[start : start + rows] for start in range(0, resamples, rows)):
        drawn = random.integers(size, size=block.shape)
        drawn += size * np.arange(len(block))[:, None]  # each resample counts in its own places
        block[:] = np.bincount(drawn.ravel(), minlength=block.size).reshape(block.shape)
    return counts


def _weighted_aurocs(
    made_up: Bool[np.ndarray, " answers"],
    scores: Float64[np.ndarray, " answers"],
    counts: Int32[np.ndarray, "resamples answers"],
) -> Float64[np.ndarray, " resamples"]:
    """AUROC with every answer counted so often: sums of whole numbers, hence exact."""
    positives, negatives = _by_score(made_up, scores), _by_score(~made_up, scores)
    below = np.zeros((len(counts), len(negatives) + 1))
    np.cumsum(counts[:, negatives], axis=1, out=below[:, 1:])
    # Right answers below, and those not above: their sum is twice the mid-rank.
    left = np.searchsorted(scores[negatives], scores[positives], side="left")
    right = np.searchsorted(scores[negatives], scores[positives], side="right")
    ranks = below[:, left] + below[:, right]
    drawn = counts[:, positives].astype(np.float64)
    wins = np.einsum("rp,rp->r", ranks, drawn)
    return wins / (2 * below[:, -1] * drawn.sum(axis=1))


def _by_score(
    which: Bool[np.ndarray, " answers"], scores: Float64[np.ndarray, " answers"]
) -> Shaped[np.ndarray, " places"]:
    places = np.flatnonzero(which)
    return places[np.argsort(scores[places], kind="stable")]


def _interval(values: Float64[np.ndarray, " resamples"], level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"level is {level}: give a share between 0 and 1, such as 0.95")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _two_sided(changes: Float64[np.ndarray, " resamples"]) -> float:
    """Twice the share of resamples on the rarer side of no difference. The data as they are count
    as one more resample, so that finitely many never give 0."""
    rarer = min(np.count_nonzero(changes <= 0), np.count_nonzero(changes >= 0))
    return float(min(1.0, 2 * (rarer + 1) / (len(changes) + 1)))
