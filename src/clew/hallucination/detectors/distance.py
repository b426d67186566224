"""How far an answer's states are from those of the training answers, so that a detector knows when
it has seen nothing like it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float, Float32

from clew.hallucination.detectors.probes.arrays import Array, to_numpy
from clew.hallucination.detectors.probes.method import Features

# The fields to measure, the first that there is.
FIELDS = ("state_mean", "sequence")
# The share of validation answers within the limit.
_WITHIN = 0.975
_COMPONENTS = 64


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
        """None for answers without states."""
        field = next((name for name in FIELDS if name in data.fields), None)
        if field is None:
            return None
        layer = data.layers // 2
        found = cls._of_states(field, layer, data.read(field, "train", layer=layer))
        distances = to_numpy(found.measure(data, "validation"))
        return replace(found, limit=max(float(np.quantile(distances, _WITHIN)), 1e-6))

    @classmethod
    def _of_states(cls, field: str, layer: int, states: Float32[np.ndarray, "rows dim"]) -> Self:
        mean = states.mean(axis=0)
        _, spreads, rows = np.linalg.svd(states - mean, full_matrices=False)
        variances = spreads.astype(np.float64) ** 2 / max(1, len(states) - 1)
        kept = min(_COMPONENTS, max(1, len(states) // 4), len(variances))
        left = variances[kept:]
        smallest = max(float(variances[kept - 1]) * 1e-3, 1e-12)
        return cls(
            field=field,
            layer=layer,
            mean=mean,
            directions=np.ascontiguousarray(rows[:kept].T.astype(np.float32)),
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
