"""How well spans in texts were found, by their characters, as RAGTruth measures it."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from clew.metrics.ranking import RESAMPLES

Place = tuple[int, int]


def count_overlap(found: Iterable[Place], labeled: Iterable[Place]) -> tuple[int, int, int]:
    """Of one text: the characters in spans that were found, in labeled ones, and in both."""
    mine, theirs = (
        {place for start, end in spans for place in range(start, end)} for spans in (found, labeled)
    )
    return len(mine), len(theirs), len(mine & theirs)


def join_tokens(
    places: Shaped[np.ndarray, "tokens 2"], chosen: Bool[np.ndarray, " tokens"]
) -> list[Place]:
    """The chosen tokens as spans, which join over a gap of one token."""
    numbers = np.flatnonzero(chosen)
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 2)
    firsts, lasts = numbers[[0, *(breaks + 1)]], numbers[[*breaks, -1]]
    return list(zip(places[firsts, 0].tolist(), places[lasts, 1].tolist(), strict=True))


def span_f1(
    counts: Sequence[tuple[int, int, int]] | Float64[np.ndarray, "texts 3"],
    weights: Sequence[float] | Shaped[np.ndarray, " texts"] | None = None,
) -> float:
    """The F1 of the characters of all texts together; 0 if there are none."""
    table = np.asarray(counts, np.float64).reshape(-1, 3)
    found, labeled, both = np.average(table, axis=0, weights=weights) if len(table) else (0, 0, 0)
    return float(2 * both / (found + labeled)) if found + labeled else 0.0


def bootstrap_span_f1(
    counts: Sequence[tuple[int, int, int]], clusters: Shaped[np.ndarray, " texts"]
) -> tuple[float, float]:
    """The 95% interval of `span_f1`, by drawing whole clusters."""
    _, places = np.unique(clusters, return_inverse=True)
    count, random = int(places.max()) + 1, np.random.default_rng(0)
    sums = np.zeros((count, 3))
    np.add.at(sums, places, np.asarray(counts, np.float64))
    drawn = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) @ sums
    low, high = np.quantile(2 * drawn[:, 2] / (drawn[:, 0] + drawn[:, 1]).clip(1), [0.025, 0.975])
    return float(low), float(high)
