"""Fusion: states, attention and probabilities of all layers combined. Every signal has the same
weight. All of them are reduced to a few hundred components, and a kernel SVM separates the classes
there, since which signal is informative depends on the answer's topic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from jaxtyping import Float32

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.attention import read_layers
from clew.hallucination.detectors.probes.fitting import (
    Array,
    Components,
    Matrix,
    Products,
    Scale,
    draw_answers,
    is_numpy,
    library,
    like,
    read_ragged,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, layers_of, method
from clew.metrics.ranking import auroc

if TYPE_CHECKING:
    from sklearn.svm import SVC

_SPECTRUM = "laplacian_top"
_RANKS = 10  # of every head's largest eigenvalues; this many hold nearly all information
# Signals missing in a store are omitted. No node features: each capture has its own basis, and a
# detector trained on one question set must apply to another.
SIGNALS = (
    "sequence",
    "state_mean",
    "lookback",
    "log_diagonal_answer",
    "log_diagonal_all",
    "laplacian_answer",
    _SPECTRUM,
)
# States of neighboring layers are nearly the same: one layer in three is as informative as all, and
# takes a third of the time for every answer.
_EVERY = {"sequence": 3, "state_mean": 3}
# Kernel widths relative to the median distance, and costs of a mistake.
_WIDTHS = (0.25, 0.5, 1.0)
_COSTS = (3.0, 1.0, 10.0)  # the first with every width, the others with the best width
_CONFIDENCE, CONFIDENCE = "confidence", ("token_logprobs", "token_entropies")
# More do not help, take longer for every answer, and make detectors larger.
_COMPONENTS = 128
_ROWS = 1024  # answers scored at a time: their distances to all support vectors are in memory


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Maps one signal's values to its part of the components: those of one layer in `every`. The
    confidence has one layer."""

    signal: str
    mean: Float32[np.ndarray, "layers features"]
    spread: Float32[np.ndarray, "layers features"]
    directions: Float32[np.ndarray, "components layers features"]  # so that one answer is fast
    every: int = 1

    def apply(self, data: Features, split: str) -> Array:
        parts = _read(self.signal, data, split, self.every)
        return sum(self._map(layers, values) for layers, values in parts)

    def _map(self, layers: slice, values: Array) -> Array:
        directions = self.directions[:, layers]
        components, count, features = directions.shape
        if values.shape[1] != features * count:
            raise InputError(
                f"these answers have {values.shape[1] // count:,} values of {self.signal}, but the "
                f"method was fitted on {features:,}: use answers of the same model."
            )
        mean, spread = self.mean[layers].reshape(-1), self.spread[layers].reshape(-1)
        values = values if is_numpy(values) == is_numpy(mean) else like(mean, values)
        return Scale(mean=mean, spread=spread).apply(values) @ directions.reshape(components, -1).T


@dataclass(frozen=True, kw_only=True)
class KernelMachine:
    """A support vector machine with a Gaussian kernel."""

    vectors: Float32[np.ndarray, "vectors components"]
    weights: Float32[np.ndarray, " vectors"]
    bias: float
    gamma: float

    @classmethod
    def of(cls, machine: "SVC") -> Self:
        """The vectors are rounded to half precision, as directions are."""
        return cls(
            vectors=machine.support_vectors_.astype(np.float16).astype(np.float32),
            weights=machine.dual_coef_[0].astype(np.float32),
            bias=float(machine.intercept_[0]),
            gamma=float(machine.gamma),
        )

    @cached_property
    def _squares(self) -> Array:
        return (self.vectors**2).sum(axis=1)

    def score(self, values: Array) -> Array:
        starts = range(0, max(1, len(values)), _ROWS)
        scores = [self._score_some(values[row : row + _ROWS]) for row in starts]
        return scores[0] if len(scores) == 1 else library(values).concatenate(scores)

    def _score_some(self, values: Array) -> Array:
        products = values @ self.vectors.T
        distances = (values**2).sum(axis=1)[:, None] - 2 * products + self._squares
        return library(values).exp(-self.gamma * distances.clip(0)) @ self.weights + self.bias


@dataclass(frozen=True, kw_only=True)
class FusionProbe(Scorer, kind="fusion"):
    """A kernel machine on the components of all signals."""

    projections: Sequence[Projection]
    machine: KernelMachine
    has_small_steps = True

    @property
    def parameters(self) -> int:
        kept = sum(projection.directions.size for projection in self.projections)
        return kept + self.machine.vectors.size + self.machine.weights.size + 1

    @property
    def fields(self) -> frozenset[str]:
        signals = {projection.signal for projection in self.projections} - {_CONFIDENCE}
        return frozenset({*signals, *CONFIDENCE})

    def score(self, data: Features, split: str) -> Array:
        return self.machine.score(project(self.projections, data, split))


@method("fusion", "Fusion (clew)", "probe", "sequence", *CONFIDENCE, also_reads=SIGNALS)
def learn_fusion(data: Features) -> Fitted:
    """Fit the fusion probe; kernel width and cost are chosen on validation."""
    signals = [signal for signal in SIGNALS if signal in data.fields]
    rows = draw_answers(len(data.labels["train"]))
    projections, training = find_components(data, signals, rows, _COMPONENTS)
    labels = data.labels["train"][rows]
    validation = project(projections, data, "validation")

    def measure(machine: KernelMachine) -> float:
        return auroc(data.labels["validation"], machine.score(validation))

    fitted = {width: _fit_machine(training, labels, width, _COSTS[0]) for width in _WIDTHS}
    width = max(fitted, key=lambda one: measure(fitted[one]))
    costs = {cost: _fit_machine(training, labels, width, cost) for cost in _COSTS[1:]}
    costs[_COSTS[0]] = fitted[width]
    cost = max(costs, key=lambda one: measure(costs[one]))
    return Fitted(
        scorer=FusionProbe(projections=projections, machine=costs[cost]),
        chosen={"signals": len(signals) + 1, "width": width, "cost": cost},
    )


def project(projections: Sequence[Projection], data: Features, split: str) -> Array:
    """The answers' components: the sum over all signals."""
    return sum(projection.apply(data, split) for projection in projections)


def _read(signal: str, data: Features, split: str, every: int) -> Iterator[tuple[slice, Array]]:
    if signal == _CONFIDENCE:
        yield slice(None), read_confidence(data, split)
    else:
        ranks = _RANKS if signal == _SPECTRUM else None
        yield from read_layers(data, signal, split, every=every, ranks=ranks)


def read_confidence(data: Features, split: str) -> Matrix:
    """Statistics of the token probabilities: mean, first token, minimum, and entropies. The number
    of tokens is not used, since length is not detection. All 0 without tokens."""
    values = np.zeros((len(data.labels[split]), 5), np.float32)
    fields = (read_ragged(data, name, split) for name in CONFIDENCE)
    for row, (logprobs, entropies) in enumerate(zip(*fields, strict=True)):
        if len(logprobs):
            probable = (logprobs.mean(), logprobs[0], logprobs.min())
            values[row] = (*probable, entropies.mean(), entropies.max())
    return values


def find_components(
    data: Features, signals: Sequence[str], rows: np.ndarray, most: int
) -> tuple[list[Projection], Matrix]:
    """Two passes over the blocks: the Gram matrix for the components, then the directions."""
    products = Products(len(rows))
    every = [*signals, _CONFIDENCE]
    for signal in every:
        for _, values in _scaled_layers(signal, data, rows):
            products.add(values)
    components = products.find_components(most)
    projections = [_project_signal(signal, data, rows, components) for signal in every]
    return projections, components.values


def _project_signal(
    signal: str, data: Features, rows: np.ndarray, components: Components
) -> Projection:
    """The signal's directions, in half precision: it changes risks by less than 1e-4."""
    scales, directions = [], []
    for scale, values in _scaled_layers(signal, data, rows):
        scales.append(scale)
        directions.append((components.shares.T @ values).astype(np.float16))
    return Projection(
        signal=signal,
        mean=np.stack([scale.mean for scale in scales]),
        spread=np.stack([scale.spread for scale in scales]),
        directions=np.stack(directions, axis=1).astype(np.float32),
        every=_EVERY.get(signal, 1),
    )


def _scaled_layers(signal: str, data: Features, rows: np.ndarray) -> Iterator[tuple[Scale, Matrix]]:
    """A signal's standardized values layer by layer, scaled so that every signal has the same total
    variance, whatever its number of features."""
    if signal == _CONFIDENCE:
        yield _scale(read_confidence(data, "train")[rows], signal, 1)
        return
    ranks = _RANKS if signal == _SPECTRUM else None
    layers = range(0, len(layers_of(signal, data)), _EVERY.get(signal, 1))
    for layer in layers:
        values = data.read(signal, "train", layer=layer)[rows][..., :ranks]
        yield _scale(values.reshape(len(rows), -1), f"{signal}, layer {layer},", len(layers))


def _scale(values: Matrix, where: str, layers: int) -> tuple[Scale, Matrix]:
    scale = standardize(values, where)
    size = np.float32(np.sqrt(values.shape[1] * layers))
    values /= size
    return Scale(mean=scale.mean, spread=scale.spread * size), values


def _fit_machine(values: Matrix, labels: np.ndarray, width: float, cost: float) -> KernelMachine:
    """Fit the kernel SVM. Both classes have the same weight, since a model that is nearly always
    wrong gives few correct answers."""
    from sklearn.svm import SVC  # slow to import

    # The median squared distance, estimated from consecutive answers in the store.
    distance = float(np.median(((values[1:] - values[:-1]) ** 2).sum(axis=1)))
    machine = SVC(C=cost, gamma=width / distance, class_weight="balanced", cache_size=500)
    return KernelMachine.of(machine.fit(values, labels))
