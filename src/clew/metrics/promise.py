"""A promise of an error rate (Learn then Test, arXiv 2110.01052): the samples with the lowest risks
are shown, as many as labels prove to be wrong no more often than a limit."""

from functools import lru_cache
from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from clew.base.errors import InputError
from clew.metrics.ranking import check_pair

# Where testing starts, as shares of the samples, and how much of the allowed error each start gets.
# One start at the strictest threshold would end at the first wrong sample with a low risk.
_STARTS = ((0.1, 0.2), (0.2, 0.4), (0.4, 0.4))
_MOST_TIMES = 20
_STEPS = 100  # limits in whole percent


def choose_count(
    labels: Shaped[np.ndarray, " samples"],
    risks: Shaped[np.ndarray, " samples"],
    *,
    max_wrong: float,
    confidence: float,
) -> int:
    """How many samples, those with the lowest risks, are shown so that of all such samples at most
    the share `max_wrong` is wrong; 0 if the labels (1 is wrong) do not prove that for any number.
    Over the draw of the samples, the promise fails with a probability of at most 1 - `confidence`.

    Whether m samples may be shown is an exact binomial test: given the risk of the next one, those
    below it are independent draws from the answers with a lower risk. Numbers are tested from few
    to many up to the first that fails (fixed-sequence testing), from several starts: each has a
    part of the error, and inherits that of a start which got as far as it (the fallback procedure).
    Samples of the same risk are shown together. Nothing is assumed about how risks and labels go
    together, but the detector must not be fitted on these samples.
    """
    starts = _plan_starts(len(labels), max_wrong, _check(max_wrong, confidence))
    if not starts:
        return 0
    wrong, counts = _count_wrong(labels, risks)
    passing, inherited, best = _test(wrong, counts, max_wrong), 0.0, 0
    for (start, share), (end, _) in pairwise([*starts, (len(labels) + 1, 0.0)]):
        inside = (counts >= start) & (counts < end)
        passed = passing[inside] <= inherited + share
        reached = len(passed) if passed.all() else int(np.argmin(passed))
        best = int(counts[inside][reached - 1]) if reached else best
        inherited = inherited + share if reached == len(passed) else 0.0
    return best


def _check(max_wrong: float, confidence: float) -> float:
    """The allowed probability of an error."""
    for name, value in (("max_wrong_shown", max_wrong), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InputError(
                "give a number between 0 and 1, such as 0.1 and 0.95.", setting=name, value=value
            )
    return 1 - confidence


def _count_wrong(
    labels: np.ndarray, risks: np.ndarray
) -> tuple[Int64[np.ndarray, " values"], Int64[np.ndarray, " values"]]:
    """At each distinct risk, lowest first: how many samples up to it are wrong, and how many there
    are."""
    wrong, found = check_pair(labels, risks, both_classes=False)
    _, group = np.unique(found, return_inverse=True)
    counts = np.cumsum(np.bincount(group))
    return np.cumsum(np.bincount(group, weights=wrong)).astype(np.int64), counts


def _test(
    wrong: Int64[np.ndarray, " values"], counts: Int64[np.ndarray, " values"], max_wrong: float
) -> Float64[np.ndarray, " values"]:
    """The p-values of "more than `max_wrong` of the answers shown are wrong"."""
    from scipy.special import bdtr  # slow to import

    return bdtr(wrong.astype(np.float64), counts, max_wrong)


@lru_cache(maxsize=256)
def _plan_starts(samples: int, max_wrong: float, error: float) -> list[tuple[int, float]]:
    """The starts that tolerate a wrong sample, with their parts of the error; without any, the
    first number that does, or all samples. None if even correct samples alone are too few."""
    if not samples:
        return []
    counts = np.arange(1, samples + 1)
    one, none = (_test(np.full(samples, wrong), counts, max_wrong) for wrong in (1, 0))
    planned = [(int(np.ceil(share * samples)), part) for share, part in _STARTS]
    kept = [(m, part) for m, part in planned if one[m - 1] <= part * error]
    if kept:
        whole = sum(part for _, part in kept)
        return [(m, part / whole * error) for m, part in kept]
    if none[-1] > error:
        return []
    return [(int(np.argmax(one <= error)) + 1 if one[-1] <= error else samples, error)]


def threshold_after(risks: Shaped[np.ndarray, " samples"], count: int) -> float:
    """The highest risk below that of the next sample after `count`, which is what their test is
    about: a lower one would show other answers than those that were proved; 1 if all are shown."""
    rising = np.sort(np.asarray(risks, np.float64))
    return float(np.nextafter(rising[count], 0)) if count < len(rising) else 1.0


def least_max_wrong(
    labels: Shaped[np.ndarray, " samples"],
    risks: Shaped[np.ndarray, " samples"],
    *,
    confidence: float,
) -> float | None:
    """The lowest limit in whole percent that could have been promised; None if there is none. A
    limit that is chosen after a look at the labels needs other labels to be promised."""
    for step in range(1, _STEPS):
        limit = step / _STEPS
        if choose_count(labels, risks, max_wrong=limit, confidence=confidence):
            return limit
    return None


def times_needed(
    labels: Shaped[np.ndarray, " samples"],
    risks: Shaped[np.ndarray, " samples"],
    *,
    max_wrong: float,
    confidence: float,
) -> int | None:
    """How many times as many samples like these would about do; None for more than 20 times."""
    for times in range(2, _MOST_TIMES + 1):
        more = np.tile(labels, times), np.tile(risks, times)
        if choose_count(*more, max_wrong=max_wrong, confidence=confidence):
            return times
    return None


def share_interval(count: int, of: int, confidence: float) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval of a share."""
    from scipy.stats import beta  # slow to import

    tail = (1 - confidence) / 2
    low = beta.ppf(tail, count, of - count + 1) if count else 0.0
    high = beta.ppf(1 - tail, count + 1, of - count) if count < of else 1.0
    return float(low), float(high)


def shown_curve(
    labels: Shaped[np.ndarray, " samples"], risks: Shaped[np.ndarray, " samples"]
) -> tuple[Float64[np.ndarray, " values"], Float64[np.ndarray, " values"]]:
    """(number shown, share of wrong ones among them), lowest risks first."""
    if not len(labels):
        return np.zeros(0), np.zeros(0)
    wrong, counts = _count_wrong(labels, risks)
    return counts.astype(np.float64), wrong / counts
