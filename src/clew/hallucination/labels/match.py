"""A score, and the accepted answer that gave it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Match(NamedTuple):
    """`score` from 0 (wrong) to 1 (right); `accepted` is the accepted answer that gave it."""

    score: float
    accepted: str


def best_match(accepted: Sequence[str], score_of: Callable[[str], float]) -> Match:
    """The best score over the accepted answers; the first of them where several give it."""
    best = Match(0.0, accepted[0])
    for alias in accepted:
        score = score_of(alias)
        if score > best.score:
            best = Match(score, alias)
    return best
