"""Gated: fusion for answers like those it was trained on, robust for others. Fusion learns what
holds for the questions it has seen, and is the best method there. Robust gives up a part of that,
and is better on other questions. Which of the two an answer needs is read from its states."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Float32

from clew.hallucination.detectors.probes.arrays import Array, is_numpy, single, stack, to_numpy
from clew.hallucination.detectors.probes.fusion import FusionProbe, learn_fusion
from clew.hallucination.detectors.probes.gaussian import Gaussian
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer
from clew.hallucination.detectors.probes.robust import (
    RobustProbe,
    learn_robust,
    read_categories,
    unit,
)

# The fields to measure, the first that there is.
_FIELDS = ("state_mean", "sequence")
# Answers that a category needs, to be recognized.
_FEWEST = 4
# The validation answers farther away than this share of them need robust to some degree; those
# farther away than all of them, entirely.
_NEAR = 0.95
_LEVELS = 11
# The least difference between two levels, in units of the spread: rounding must not matter.
_STEP = 0.02
_FLOOR = 1e-3  # of the largest variance: states are stored in half precision
# In units of their spread. Fusion separates the classes more clearly.
_FUSION_WEIGHT = 2.0


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """How near an answer's states are to a category of the training answers: by their Mahalanobis
    distance (Lee et al. 2018), which finds answers unlike all others, and by how much nearer they
    are to it than to the whole (Ren et al. 2021), which finds those that lie between the
    categories. `levels` are quantiles of both on validation."""

    field: str
    layer: int
    means: Float32[np.ndarray, "categories dim"]
    within: Gaussian
    mean: Float32[np.ndarray, " dim"]
    whole: Gaussian
    levels: Float32[np.ndarray, "levels 2"]

    @classmethod
    def fit(cls, data: Features) -> Self:
        field = next(name for name in _FIELDS if name in data.fields)
        layer = data.layers // 2
        states = unit(data.read(field, "train", layer=layer))
        groups = _number_categories(data, len(states))
        means = np.stack([states[groups == group].mean(axis=0) for group in range(max(groups) + 1)])
        known = states[groups >= 0]
        mean = states.mean(axis=0)
        found = cls(
            field=field,
            layer=layer,
            means=means,
            within=Gaussian.fit(known - means[groups[groups >= 0]], _FLOOR),
            mean=mean,
            whole=Gaussian.fit(states - mean, _FLOOR),
            levels=np.zeros((0, 2), np.float32),
        )
        distances = to_numpy(found.measure(data, "validation"))
        return replace(found, levels=_find_levels(distances))

    def measure(self, data: Features, split: str) -> Float[Array, "rows 2"]:
        """The distance, and the relative one."""
        states = unit(data.read(self.field, split, layer=self.layer))
        squares = self.within.square_to(states, self.means)
        nearest = squares.min(axis=1) if is_numpy(squares) else squares.amin(dim=1)
        whole = self.whole.square_to(states, self.mean[None])[:, 0]
        return stack((nearest, nearest - whole))

    def share(self, data: Features, split: str) -> Float[Array, " rows"]:
        """1 for answers like the training answers, 0 for those unlike all of them, and between
        them the share of validation answers that are farther away, among the farthest."""
        lower, upper = self.levels[:-1], self.levels[1:]
        passed = (self.measure(data, split)[:, None] - lower) / (upper - lower)
        shares = 1 - passed.clip(0, 1).sum(axis=1) / len(lower)
        return single(shares[:, 0] * shares[:, 1])


def _find_levels(distances: Float[np.ndarray, "rows 2"]) -> Float32[np.ndarray, "levels 2"]:
    """Increasing quantiles of the farthest answers."""
    levels = np.quantile(distances, np.linspace(_NEAR, 1, _LEVELS), axis=0)
    least = distances.std(axis=0).clip(1e-6) * _STEP
    return (levels + least * np.arange(_LEVELS)[:, None]).astype(np.float32)


def _number_categories(data: Features, answers: int) -> np.ndarray:
    """The category of every training answer from 0; -1 for one with too few answers. All answers
    are one category if none has enough."""
    _, groups, counts = np.unique(
        read_categories(data, "train"), return_inverse=True, return_counts=True
    )
    enough = counts >= _FEWEST
    if not enough.any():
        return np.zeros(answers, np.int64)
    numbers: np.ndarray = np.where(enough, np.cumsum(enough) - 1, -1)[groups]
    return numbers


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Center and spread of a method's scores on validation."""

    center: float
    spread: float

    @classmethod
    def of(cls, scorer: Scorer, data: Features) -> Self:
        scores = to_numpy(scorer.score(data, "validation"))
        return cls(center=float(scores.mean()), spread=max(float(scores.std()), 1e-6))

    def apply(self, scores: Array) -> Array:
        return (scores - self.center) / self.spread


@dataclass(frozen=True, kw_only=True)
class GatedProbe:
    """Two methods, and how much each of them counts for an answer."""

    fusion: FusionProbe
    robust: RobustProbe
    familiarity: Familiarity
    fusion_standing: Standing
    robust_standing: Standing

    @property
    def parameters(self) -> int:
        return self.fusion.parameters + self.robust.parameters

    @property
    def fields(self) -> frozenset[str]:
        return self.fusion.fields | self.robust.fields | {self.familiarity.field}

    def score(self, data: Features, split: str) -> Array:
        fusion = self.fusion_standing.apply(self.fusion.score(data, split))
        robust = self.robust_standing.apply(self.robust.score(data, split))
        share = self.familiarity.share(data, split)
        return share * _FUSION_WEIGHT * fusion + (1 - share) * robust


def learn_gated(data: Features) -> Fitted:
    """Fit both methods and the gate; fusion makes its choices on validation."""
    fusion, robust = learn_fusion(data), learn_robust(data)
    assert isinstance(fusion.scorer, FusionProbe) and isinstance(robust.scorer, RobustProbe)
    chosen: dict[str, Any] = {**fusion.chosen, "layers": robust.chosen["layers"]}
    return Fitted(
        scorer=GatedProbe(
            fusion=fusion.scorer,
            robust=robust.scorer,
            familiarity=Familiarity.fit(data),
            fusion_standing=Standing.of(fusion.scorer, data),
            robust_standing=Standing.of(robust.scorer, data),
        ),
        chosen=chosen,
    )
