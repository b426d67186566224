"""A normal distribution of states with few numbers: the variances of their principal components,
and one variance for everything outside of them (probabilistic PCA)."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float, Float32, Float64

from clew.hallucination.detectors.probes.fitting import Array, doubled, to_numpy
from clew.hallucination.detectors.probes.method import Features

_COMPONENTS = 64
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """The shape of the distribution; its center is known to who uses it."""

    directions: Float32[np.ndarray, "dim components"]
    variances: Float32[np.ndarray, " components"]
    rest: float

    @classmethod
    def fit(cls, centered: Float32[np.ndarray, "rows dim"], floor: float = 0.0) -> Self:
        """No variance is less than `floor` times the largest one."""
        found, columns = np.linalg.eigh(_covariance(centered))  # of [dim, dim], for any rows
        rank = min(len(centered), len(found))
        variances = found[::-1][:rank].clip(0)
        kept = min(_COMPONENTS, max(1, len(centered) // 4), rank)
        left = variances[kept:]
        smallest = max(float(variances[kept - 1]) * 1e-3, float(variances[0]) * floor, 1e-12)
        return cls(
            directions=np.ascontiguousarray(columns[:, ::-1][:, :kept].astype(np.float32)),
            variances=np.maximum(variances[:kept], smallest).astype(np.float32),
            rest=max(float(left.mean()) if len(left) else 0.0, smallest),
        )

    def square(self, centered: Array) -> Float[Array, " rows"]:
        """The squared Mahalanobis distances from the center."""
        inside = centered @ self.directions
        outside = ((centered**2).sum(axis=1) - (inside**2).sum(axis=1)).clip(0)
        return (inside**2 / self.variances).sum(axis=1) + outside / self.rest

    def around(self, centers: Array) -> "Centers":
        """Several centers with this shape."""
        points, directions = doubled(centers), doubled(self.directions)
        scale, inside = doubled(self.variances) ** 0.5, points @ directions
        return Centers(
            directions=directions,
            scale=scale,
            rest=self.rest,
            points=_Points.of(points),
            inside=_Points.of(inside),
            scaled=_Points.of(inside / scale),
        )


@dataclass(frozen=True, kw_only=True)
class _Points:
    """Points with their squared lengths, which distances need again and again."""

    points: Float64[Array, "points dim"]
    squares: Float64[Array, " points"]

    @classmethod
    def of(cls, points: Array) -> Self:
        return cls(points=points, squares=(points**2).sum(axis=1))

    def square_from(self, rows: Array) -> Float64[Array, "rows points"]:
        return (rows**2).sum(axis=1)[:, None] - 2 * rows @ self.points.T + self.squares


@dataclass(frozen=True, kw_only=True)
class Centers:
    """Several distributions of one shape. In double precision: large numbers are subtracted."""

    directions: Float64[Array, "dim components"]
    scale: Float64[Array, " components"]
    rest: float
    points: _Points
    inside: _Points
    scaled: _Points

    def square(self, states: Array) -> Float64[Array, "rows centers"]:
        """The squared Mahalanobis distances from every center."""
        states = doubled(states)
        inside = states @ self.directions
        outside = (self.points.square_from(states) - self.inside.square_from(inside)).clip(0)
        return self.scaled.square_from(inside / self.scale).clip(0) + outside / self.rest


def _covariance(centered: Float32[np.ndarray, "rows dim"]) -> Float64[np.ndarray, "dim dim"]:
    """A few thousand rows at a time."""
    total = np.zeros((centered.shape[1], centered.shape[1]))
    for first in range(0, len(centered), _ROWS_AT_ONCE):
        some = centered[first : first + _ROWS_AT_ONCE].astype(np.float64)
        total += some.T @ some
    return total / max(1, len(centered) - 1)


# The fields to measure, the first that there is.
FIELDS = ("state_mean", "sequence")
# The share of validation answers within the limit.
_WITHIN = 0.975


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Mahalanobis distance in the principal components of one layer's states; what lies outside of
    them counts by its own variance (probabilistic PCA). `limit` is its 97.5th percentile on
    validation."""

    field: str
    layer: int
    mean: Float32[np.ndarray, " dim"]
    directions: Float32[np.ndarray, "dim components"]
    variances: Float32[np.ndarray, " components"]
    rest: float
    limit: float = 1.0

    @classmethod
    def fit(cls, data: Features) -> Self | None:
        """None for answers without states. Answers whose states are not finite do not count."""
        field = next((name for name in FIELDS if name in data.fields), None)
        if field is None:
            return None
        layer = data.layers // 2
        states = data.read(field, "train", layer=layer)
        states = states[np.isfinite(states).all(axis=1)]
        if len(states) < 2:
            return None
        mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        shape = Gaussian.fit(states - mean)
        found = cls(field=field, layer=layer, mean=mean, **vars(shape))
        distances = to_numpy(found.measure(data, "validation"))
        known = distances[np.isfinite(distances)]
        limit = float(np.quantile(known, _WITHIN)) if len(known) else 1.0
        return replace(found, limit=max(limit, 1e-6))

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def measure(self, data: Features, split: str) -> Float[Array, " rows"]:
        """Distances in units of the limit: above 1 is out of distribution."""
        centered = data.read(self.field, split, layer=self.layer) - self.mean
        shape = Gaussian(directions=self.directions, variances=self.variances, rest=self.rest)
        return shape.square(centered) ** 0.5 / self.limit
