"""Fewer points of a curve, chosen so that its drawing stays the same."""

import heapq

import numpy as np
from jaxtyping import Float64, Int64

from clew.errors import InputError

_Points = Float64[np.ndarray, "points 2"]


def thin_curve(
    x: Float64[np.ndarray, " points"], y: Float64[np.ndarray, " points"], most: int
) -> tuple[Float64[np.ndarray, " kept"], Float64[np.ndarray, " kept"]]:
    """At most `most` of the points, both ends among them: always the one farthest from the line
    drawn so far comes next (Douglas & Peucker), until none lies off it."""
    if most < 2:
        raise InputError(f"most is {most}: a curve needs at least 2 points")
    kept = _choose(np.column_stack([x, y]), most)
    return x[kept], y[kept]


def _choose(points: _Points, most: int) -> Int64[np.ndarray, " kept"]:
    kept = {0, len(points) - 1}
    waiting = [_farthest(points, 0, len(points) - 1)]
    while len(kept) < most and waiting:
        distance, start, middle, end = heapq.heappop(waiting)
        if distance == 0:  # negated, so that the farthest comes first
            break
        kept.add(middle)
        heapq.heappush(waiting, _farthest(points, start, middle))
        heapq.heappush(waiting, _farthest(points, middle, end))
    return np.array(sorted(kept))


def _farthest(points: _Points, start: int, end: int) -> tuple[float, int, int, int]:
    """(minus its distance, start, place, end) of the point farthest from the line between."""
    if end - start < 2:
        return 0.0, start, start, end
    line = points[end] - points[start]
    away = points[start + 1 : end] - points[start]
    length = float(np.hypot(*line))
    off = np.abs(line[0] * away[:, 1] - line[1] * away[:, 0]) / length if length else None
    distances = np.hypot(*away.T) if off is None else off
    best = int(distances.argmax())
    return -float(distances[best]), start, start + 1 + best, end
