"""Robust: linear scores of the middle layers' states, of attention and of token probabilities,
added up. What the questions are about is removed before a direction is fitted: answers of one
category are compared only with each other. Nothing is chosen, so nothing is chosen that holds for
one set of questions only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Float64, Int

from clew.hallucination.detectors.probes.attention import FEW, HeadsProbe, read_flat
from clew.hallucination.detectors.probes.fitting import (
    Array,
    Linear,
    LinearScorer,
    Matrix,
    average,
    draw_answers,
    is_numpy,
    library,
    like,
)
from clew.hallucination.detectors.probes.fusion import CONFIDENCE, read_confidence
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, method

_STATES = ("state_mean", "sequence")
_HEADS = ("lookback", "log_diagonal_answer", "laplacian_answer")
SIGNALS = (*_STATES, *_HEADS)
# Answers of each class that a category needs, to count as one.
_FEWEST = 4
# They hold for every set of questions: with this weight the sum is never worse than they are alone.
_CONFIDENCE_WEIGHT = 2.0
# Added to the variance of every standardized feature.
_RIDGE = 1.0


@dataclass(frozen=True, kw_only=True)
class UnitStates(LinearScorer):
    """A linear score of one layer's states, scaled to unit length."""

    field: str
    layer: int

    def score(self, data: Features, split: str) -> Array:
        return self.linear.score(unit(data.read(self.field, split, layer=self.layer)))


@dataclass(frozen=True, kw_only=True)
class _StackedStates(LinearScorer):
    """The sum of several layers' scores in one product: for a few answers, many times as fast."""

    field: str
    layers: Sequence[int]

    @classmethod
    def of(cls, parts: Sequence[UnitStates]) -> "_StackedStates":
        every = [part.linear.weights for part in parts]
        weights = library(every[0]).concatenate(every)
        linear = Linear(weights=weights, bias=sum(part.linear.bias for part in parts))
        return cls(field=parts[0].field, layers=[part.layer for part in parts], linear=linear)

    def score(self, data: Features, split: str) -> Array:
        if min(self.layers) < 0:  # in a damaged file
            raise IndexError(f"layer {min(self.layers)}")
        states = unit(data.read(self.field, split)[:, self.layers])
        return self.linear.score(states.reshape(len(states), -1))


@dataclass(frozen=True, kw_only=True)
class RobustProbe(Scorer, kind="robust"):
    """The sum of the signals' scores. Each has the same spread within a class, and token
    probabilities count twice."""

    states: Sequence[UnitStates]
    heads: Sequence[HeadsProbe]
    confidence: Linear
    has_small_steps = True

    @property
    def parameters(self) -> int:
        return self.confidence.parameters + sum(part.linear.parameters for part in self._parts)

    @property
    def fields(self) -> frozenset[str]:
        fields = {part.field for part in self._parts}
        return frozenset({*fields, *CONFIDENCE})

    @property
    def _parts(self) -> tuple[UnitStates | HeadsProbe, ...]:
        return (*self.states, *self.heads)

    @cached_property
    def _all_layers(self) -> Sequence[_StackedStates]:
        fields = dict.fromkeys(part.field for part in self.states)
        return [_StackedStates.of([p for p in self.states if p.field == name]) for name in fields]

    def score(self, data: Features, split: str) -> Array:
        is_small = len(data.labels[split]) <= FEW
        states = self._all_layers if is_small else self.states
        scores = [part.score(data, split) for part in (*states, *self.heads)]
        values = read_confidence(data, split)
        weights = self.confidence.weights
        values = values if is_numpy(weights) else like(weights, values)
        return sum(scores, self.confidence.score(values))


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """The training answers that are compared: `group` and class of each, and its weight. Both
    classes of a group weigh the same; a group weighs as the root of its smaller class."""

    rows: Int[np.ndarray, " some"]
    cells: Int[np.ndarray, " some"]  # 2 * group + label
    weights: Float64[np.ndarray, " some"]

    @classmethod
    def of(cls, data: Features) -> "_Groups":
        labels = data.labels["train"].astype(np.int64)
        _, groups = np.unique(read_categories(data, "train"), return_inverse=True)
        counts = np.bincount(2 * groups + labels, minlength=2 * (groups.max() + 1)).reshape(-1, 2)
        if not (counts.min(axis=1) >= _FEWEST).any():  # then all are one group
            groups, counts = np.zeros_like(groups), np.bincount(labels, minlength=2)[None]
        smaller = counts.min(axis=1)
        is_used = smaller >= min(_FEWEST, smaller.max())
        rows = np.flatnonzero(is_used[groups])
        rows = rows[draw_answers(len(rows))]
        cells = 2 * groups[rows] + labels[rows]
        shares = np.where(is_used, np.sqrt(smaller), 0) / np.sqrt(smaller[is_used]).sum()
        weights = (shares / 2)[groups[rows]] / counts[groups[rows], labels[rows]]
        return cls(rows=rows, cells=cells, weights=weights / weights.sum())


def read_categories(data: Features, split: str) -> list[str]:
    """The category of every answer; all are the same in a store without categories."""
    if "category" not in data.fields:
        return [""] * len(data.labels[split])
    return [str(name) for name in data.read("category", split)]


@method(
    *("robust", "Robust (clew)", "probe", "sequence", *CONFIDENCE),
    also_reads=(*SIGNALS, "category"),
)
def learn_robust(data: Features) -> Fitted:
    """Fit one direction per signal and layer; validation is not used."""
    groups = _Groups.of(data)
    fields = [field for field in SIGNALS if field in data.fields]
    layers = range(data.layers // 4, 3 * data.layers // 4 + 1, 2)
    states = [
        UnitStates(field=field, layer=layer, linear=linear)
        for field in fields
        if field in _STATES
        for layer, linear in _fit_layers(data, field, layers, groups)
    ]
    heads = [
        HeadsProbe(field=field, linear=_fit(read_flat(data, field, "train"), groups, field))
        for field in fields
        if field in _HEADS
    ]
    confidence = _fit(read_confidence(data, "train"), groups, "token probabilities")
    confidence = confidence.times(_CONFIDENCE_WEIGHT)
    return Fitted(
        scorer=RobustProbe(states=states, heads=heads, confidence=confidence),
        chosen={"signals": len(fields) + 1, "layers": len(layers)},
    )


def _fit_layers(
    data: Features, field: str, layers: range, groups: _Groups
) -> Iterator[tuple[int, Linear]]:
    """A linear score for every layer; together they count as one signal."""
    for layer in layers:
        states = unit(data.read(field, "train", layer=layer))
        linear = _fit(states, groups, f"{field}, layer {layer},")
        yield layer, linear.times(1 / len(layers))


def _fit(matrix: Matrix, groups: _Groups, where: str) -> Linear:
    """Linear discriminant analysis within the groups. The score's spread within a class is 1, and
    0 is halfway between the classes."""
    average(matrix, where)
    values = matrix[groups.rows]
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    values /= spread
    means = _average_cells(values, groups.cells)
    differences = values - means[groups.cells]
    covariance = (differences * groups.weights[:, None]).T.astype(np.float32) @ differences
    signs = np.where(groups.cells % 2, 2.0, -2.0) * groups.weights
    ridge = _RIDGE * np.eye(len(spread), dtype=np.float32)
    found = np.linalg.solve(covariance + ridge, (signs @ values).astype(np.float32))
    found /= np.sqrt(max(float(found @ covariance @ found), 1e-12))
    bias = -float((groups.weights @ values) @ found)
    return Linear(weights=(found / spread).astype(np.float32), bias=bias)


def _average_cells(
    values: Matrix, cells: Int[np.ndarray, " rows"]
) -> Float32[np.ndarray, "cells features"]:
    """The mean of every cell; 0 for one without answers."""
    sums = np.zeros((cells.max() + 1, values.shape[1]), np.float32)
    for cell in np.unique(cells):
        sums[cell] = values[cells == cell].mean(axis=0)
    return sums


def unit(states: Array) -> Array:
    length = (states**2).sum(axis=-1, keepdims=True) ** 0.5
    return states / length.clip(1e-6)
