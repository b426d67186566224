"""Metrics of samples that come in groups, such as the tokens of answers. Samples of a group are not
independent, so intervals resample groups."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int32, Shaped

from clew.base.errors import InputError
from clew.metrics.checks import check_count, check_pair
from clew.metrics.ranking import RESAMPLES, bootstrap_aurocs

_BLOCK_NUMBERS = 1 << 22  # of one block of resamples


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
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> GroupedMeasures:
    """Measure the samples; `groups` numbers the group of each. Raises InputError for a single
    class, different lengths, or non-finite scores."""
    positive, found = check_pair(labels, scores)
    if len(groups) != len(found):
        raise InputError(f"{len(groups):,} groups for {len(found):,} samples: give one per sample")
    _, places = np.unique(groups, return_inverse=True)
    random, count = np.random.default_rng(seed), int(places.max()) + 1
    drawn = [_measure(positive, found, np.ones((1, len(found)), np.int32), false_positive_rate)]
    left = check_count("resamples", resamples)
    while left:
        size = min(left, max(1, _BLOCK_NUMBERS // max(count, len(found))))
        weights = random.multinomial(count, np.full(count, 1 / count), size=size)[:, places]
        weights = weights.astype(np.int32)
        has_both = weights[:, positive].any(axis=1) & weights[:, ~positive].any(axis=1)
        if has_both.any():
            drawn.append(_measure(positive, found, weights[has_both], false_positive_rate))
        left -= size
    (whole_auroc, *aurocs), (whole_recall, *recalls) = np.concatenate(drawn, axis=1)
    tails = [(1 - level) / 2, (1 + level) / 2]
    return GroupedMeasures(
        auroc=float(whole_auroc),
        auroc_ci=_interval(aurocs, tails, whole_auroc),
        recall=float(whole_recall),
        recall_ci=_interval(recalls, tails, whole_recall),
    )


def _interval(values: list[float], tails: list[float], whole: float) -> tuple[float, float]:
    low, high = np.quantile(values or [whole], tails)
    return float(low), float(high)


def _measure(
    positive: Bool[np.ndarray, " samples"],
    scores: Float64[np.ndarray, " samples"],
    weights: Int32[np.ndarray, "resamples samples"],
    false_positive_rate: float,
) -> Float64[np.ndarray, "2 resamples"]:
    aurocs = bootstrap_aurocs(positive, scores, weights)
    order = np.argsort(-scores, kind="stable")
    falling, drawn = scores[order], weights[:, order].astype(np.float64)
    # A threshold takes all samples of the same score, or none.
    ends = np.append(np.flatnonzero(np.diff(falling)), len(falling) - 1)
    hits = np.cumsum(drawn * positive[order], axis=1)[:, ends]
    alarms = np.cumsum(drawn * ~positive[order], axis=1)[:, ends]
    allowed = alarms <= false_positive_rate * alarms[:, -1:] + 1e-9
    recalls = np.max(np.where(allowed, hits, 0), axis=1) / hits[:, -1]
    return np.stack([aurocs, recalls])
