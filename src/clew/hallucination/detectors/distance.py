"""How far an answer's states are from those of the training answers, so that a detector knows when
it has seen nothing like it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float, Float32, Float64

from clew.hallucination.detectors.probes.arrays import Array, to_numpy
from clew.hallucination.detectors.probes.method import Features

# The fields to measure, the first that there is.
FIELDS = ("state_mean", "sequence")
# The share of validation answers within the limit.
_WITHIN = 0.975
_COMPONENTS = 64
_ROWS_AT_ONCE = 4096


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
        found = cls._of_states(field, layer, states)
        distances = to_numpy(found.measure(data, "validation"))
        known = distances[np.isfinite(distances)]
        limit = float(np.quantile(known, _WITHIN)) if len(known) else 1.0
        return replace(found, limit=max(limit, 1e-6))

    @classmethod
    def _of_states(cls, field: str, layer: int, states: Float32[np.ndarray, "rows dim"]) -> Self:
        mean, covariance = _measure_spread(states)
        found, columns = np.linalg.eigh(covariance)  # of [dim, dim], for any number of answers
        rank = min(len(states), len(found))
        variances = found[::-1][:rank].clip(0)
        kept = min(_COMPONENTS, max(1, len(states) // 4), rank)
        left = variances[kept:]
        smallest = max(float(variances[kept - 1]) * 1e-3, 1e-12)
        return cls(
            field=field,
            layer=layer,
            mean=mean.astype(np.float32),
            directions=np.ascontiguousarray(columns[:, ::-1][:, :kept].astype(np.float32)),
            variances=np.maximum(variances[:kept], smallest).astype(np.float32),
            rest=max(float(left.mean()) if len(left) else 0.0, smallest),
        )

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def measure(self, data: Features, split: str) -> Float[Array, " rows"]:
        """Distances in units of the limit: above 1 is out of distribution."""
        centered = data.read(self.field, split, layer=self.layer) - self.mean
        inside = centered @ self.directions
        outside = ((centered**2).sum(axis=1) - (inside**2).sum(axis=1)).clip(0)
        return ((inside**2 / self.variances).sum(axis=1) + outside / self.rest) ** 0.5 / self.limit


def _measure_spread(
    states: Float32[np.ndarray, "rows dim"],
) -> tuple[Float64[np.ndarray, " dim"], Float64[np.ndarray, "dim dim"]]:
    """Mean and covariance, a few thousand rows at a time."""
    mean = states.mean(axis=0, dtype=np.float64)
    total = np.zeros((len(mean), len(mean)))
    for first in range(0, len(states), _ROWS_AT_ONCE):
        centered = states[first : first + _ROWS_AT_ONCE] - mean
        total += centered.T @ centered
    return mean, total / max(1, len(states) - 1)
