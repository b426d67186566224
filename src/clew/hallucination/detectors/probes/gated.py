"""Gated: fusion for answers like those it was trained on, robust for others. Which of the two an
answer needs is read from its states, by the normal distribution of those of the training answers;
so is whether a detector knows answers like it at all."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from clew.hallucination.detectors.probes.fitting import (
    Array,
    doubled,
    is_numpy,
    library,
    single,
    to_numpy,
)
from clew.hallucination.detectors.probes.fusion import (
    CONFIDENCE,
    SIGNALS,
    FusionProbe,
    learn_fusion,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, method
from clew.hallucination.detectors.probes.robust import (
    RobustProbe,
    learn_robust,
    read_categories,
    unit,
)
from clew.metrics.calibration import PlattScale

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


# Answers that a category needs, to be recognized.
_FEWEST = 4
# Answers farther away than this share of the validation answers need robust to some degree; those
# farther away than all of them, entirely. So do answers farther away than this share of the
# training answers are from other categories than their own: they may be to unseen questions.
_NEAR, _NEAR_UNSEEN = 0.95, 0.25
_LEVELS = 11
# Answers that are less familiar than this are left to robust: a small share of fusion, which may be
# very sure, would outweigh it.
_LEAST_SHARE = 0.1
# The least difference between two levels, in units of the spread: rounding must not matter.
_STEP = 0.02
_FLOOR = 1e-3  # of the largest variance: states are stored in half precision


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """How near an answer's states are to a category of the training answers: by their Mahalanobis
    distance (Lee et al. 2018), which finds answers unlike all others, and by how much nearer they
    are to it than to the whole (Ren et al. 2021), which finds those that lie between the
    categories. `levels` are quantiles of both, on validation or among training answers without
    their own category, whichever are less. A share below `least` is 0."""

    field: str
    layer: int
    means: Float32[np.ndarray, "categories dim"]
    within: Gaussian
    mean: Float32[np.ndarray, " dim"]
    whole: Gaussian
    levels: Float32[np.ndarray, "levels 2"]
    least: float = 0.0  # in detectors of earlier versions

    @classmethod
    def fit(cls, data: Features) -> Self:
        field = next(name for name in FIELDS if name in data.fields)
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
        levels = _find_levels(to_numpy(found.measure(data, "validation")), _NEAR)
        if len(means) > 1:
            unseen = found._measure_unseen(known, groups[groups >= 0])
            others = _find_levels(unseen, _NEAR_UNSEEN, groups[groups >= 0])
            levels = np.minimum(levels, others)
        return replace(found, levels=levels, least=_LEAST_SHARE)

    def _measure_unseen(
        self, states: np.ndarray, groups: Int[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "rows 2"]:
        """What `measure` would give if an answer's own category were not known."""
        categories, whole = self._centers
        squares = categories.square(states)
        squares[np.arange(len(states)), groups] = np.inf
        nearest = squares.min(axis=1)
        return np.stack((nearest, nearest - whole.square(states)[:, 0]), axis=1)

    @cached_property
    def _centers(self) -> tuple[Centers, Centers]:
        """The categories and the whole."""
        return self.within.around(self.means), self.whole.around(self.mean[None])

    def measure(self, data: Features, split: str) -> Float[Array, "rows 2"]:
        """The distance, and the relative one."""
        states = unit(data.read(self.field, split, layer=self.layer))
        categories, whole = self._centers
        squares = categories.square(states)
        nearest = squares.min(axis=1) if is_numpy(squares) else squares.amin(dim=1)
        distances = (nearest, nearest - whole.square(states)[:, 0])
        return library(nearest).stack(distances, axis=1)

    def share(self, data: Features, split: str) -> Float[Array, " rows"]:
        """1 for answers like the training answers, 0 for those unlike all of them, and between
        them the share of answers that are farther away, among those that are far."""
        lower, upper = self.levels[:-1], self.levels[1:]
        passed = (self.measure(data, split)[:, None] - lower) / (upper - lower)
        shares = 1 - passed.clip(0, 1).sum(axis=1) / len(lower)
        share = (shares[:, 0] * shares[:, 1] - self.least) / (1 - self.least)
        return single(share.clip(0))


def _find_levels(
    distances: Float[np.ndarray, "rows 2"], near: float, groups: np.ndarray | None = None
) -> Float32[np.ndarray, "levels 2"]:
    """Increasing quantiles from `near` to 1. All groups weigh the same."""
    weights = None if groups is None else (1 / np.bincount(groups))[groups]
    method: Literal["linear", "inverted_cdf"] = "linear" if weights is None else "inverted_cdf"
    shares = np.linspace(near, 1, _LEVELS)
    levels = np.quantile(distances, shares, axis=0, weights=weights, method=method)
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
    """Center and spread that turn a method's scores into log-odds. Both methods then mean the same
    by a score, and answers that get one can be compared with answers that get the other."""

    center: float
    spread: float

    @classmethod
    def of(cls, scorer: Scorer, data: Features) -> Self:
        """Calibrated on validation."""
        scores = to_numpy(scorer.score(data, "validation"))
        scale = PlattScale.fit(data.labels["validation"], scores)
        spread = scale.spread / scale.slope
        return cls(center=scale.middle - scale.intercept * spread, spread=spread)

    def apply(self, scores: Array) -> Array:
        return (scores - self.center) / self.spread


@dataclass(frozen=True, kw_only=True)
class GatedProbe(Scorer, kind="gated"):
    """Two methods, and how much each of them counts for an answer. In detectors of earlier versions
    the standings are center and spread of the scores, and fusion counts twice."""

    fusion: FusionProbe
    robust: RobustProbe
    familiarity: Familiarity
    fusion_standing: Standing
    robust_standing: Standing
    fusion_weight: float = 2.0
    has_small_steps = True

    @property
    def parameters(self) -> int:
        return self.fusion.parameters + self.robust.parameters

    @property
    def fields(self) -> frozenset[str]:
        return self.fusion.fields | self.robust.fields | {self.familiarity.field}

    def score(self, data: Features, split: str) -> Array:
        share = self.familiarity.share(data, split)
        if is_numpy(share) and not share.any():  # a GPU is not waited for
            return self.robust_standing.apply(self.robust.score(data, split))
        fusion = self.fusion_standing.apply(self.fusion.score(data, split))
        if is_numpy(share) and (share == 1).all():
            return self.fusion_weight * fusion
        robust = self.robust_standing.apply(self.robust.score(data, split))
        return share * self.fusion_weight * fusion + (1 - share) * robust


@method(
    *("gated", "Gated (clew)", "probe", "sequence", *CONFIDENCE), also_reads=(*SIGNALS, "category")
)
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
            fusion_weight=1.0,
        ),
        chosen=chosen,
    )
