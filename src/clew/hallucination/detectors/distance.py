"""How far an answer's states are from those of the training answers, so that a detector knows when
it has seen nothing like it."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Float, Float32

from clew.hallucination.detectors.probes.arrays import Array, to_numpy
from clew.hallucination.detectors.probes.gaussian import Gaussian
from clew.hallucination.detectors.probes.method import Features

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
