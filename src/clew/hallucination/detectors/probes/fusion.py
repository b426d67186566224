"""Fusion: states, attention and probabilities of all layers combined. Every signal has the same
weight. All of them are reduced to a few hundred components, and a kernel SVM separates the classes
there, since which signal is informative depends on the answer's topic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from sklearn.svm import SVC

from clew.errors import InputError
from clew.hallucination.detectors.probes.fitting import (
    Matrix,
    Products,
    Scale,
    draw_answers,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.metrics import auroc

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
# Kernel widths relative to the median distance, and costs of a mistake.
_WIDTHS = (0.25, 0.5, 1.0)
_COSTS = (3.0, 1.0, 10.0)  # the first with every width, the others with the best width
_CONFIDENCE = "confidence"


@dataclass(frozen=True, kw_only=True)
class Block:
    """One signal in one layer; None for a signal without layers."""

    signal: str
    layer: int | None

    def read(self, data: Features, split: str) -> Matrix:
        if self.layer is None:
            return read_confidence(data, split)
        values = data.read(self.signal, split, layer=self.layer)
        if self.signal == _SPECTRUM:
            values = values[..., :_RANKS]
        return values.reshape(len(values), -1)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Maps a block's values to its part of the components."""

    block: Block
    scale: Scale
    directions: Float32[np.ndarray, "features components"]

    def apply(self, data: Features, split: str) -> Matrix:
        values = self.block.read(data, split)
        if values.shape[1] != len(self.directions):
            raise InputError(
                f"these answers have {values.shape[1]:,} values of {self.block.signal}, but the "
                f"method was fitted on {len(self.directions):,}: use answers of the same model."
            )
        return self.scale.apply(values) @ self.directions


@dataclass(frozen=True, kw_only=True)
class FusionProbe:
    """A kernel SVM on the components of all signals."""

    projections: Sequence[Projection]
    machine: SVC

    @property
    def parameters(self) -> int:
        kept = sum(projection.directions.size for projection in self.projections)
        return kept + self.machine.support_vectors_.size + self.machine.dual_coef_.size + 1

    def score(self, data: Features, split: str) -> Scores:
        return self.machine.decision_function(project(self.projections, data, split))


def learn_fusion(data: Features) -> Fitted:
    """Fit the fusion probe; kernel width and cost are chosen on validation."""
    signals = [signal for signal in SIGNALS if signal in data.fields]
    rows = draw_answers(len(data.labels["train"]))
    projections, training = _find_components(data, signals, rows)
    labels = data.labels["train"][rows]
    validation = project(projections, data, "validation")

    def measure(machine: SVC) -> float:
        return auroc(data.labels["validation"], machine.decision_function(validation))

    fitted = {width: _fit_machine(training, labels, width, _COSTS[0]) for width in _WIDTHS}
    width = max(fitted, key=lambda one: measure(fitted[one]))
    costs = {cost: _fit_machine(training, labels, width, cost) for cost in _COSTS[1:]}
    costs[_COSTS[0]] = fitted[width]
    cost = max(costs, key=lambda one: measure(costs[one]))
    return Fitted(
        scorer=FusionProbe(projections=projections, machine=costs[cost]),
        chosen={"signals": len(signals) + 1, "width": width, "cost": cost},
    )


def project(projections: Sequence[Projection], data: Features, split: str) -> Matrix:
    """The answers' components: the sum over all blocks."""
    parts = (projection.apply(data, split) for projection in projections)
    total = next(parts)
    for part in parts:
        total += part
    return total


def read_confidence(data: Features, split: str) -> Matrix:
    """Statistics of the token probabilities: mean, first token, minimum, and entropies. The number
    of tokens is not used, since length is not detection. All 0 without tokens."""
    values = np.zeros((len(data.labels[split]), 5), np.float32)
    fields = (data.read(name, split) for name in ("token_logprobs", "token_entropies"))
    for row, (logprobs, entropies) in enumerate(zip(*fields, strict=True)):
        if len(logprobs):
            probable = (logprobs.mean(), logprobs[0], logprobs.min())
            values[row] = (*probable, entropies.mean(), entropies.max())
    return values


def _find_components(
    data: Features, signals: Sequence[str], rows: np.ndarray
) -> tuple[list[Projection], Matrix]:
    """Two passes over the blocks: the Gram matrix for the components, then the directions."""
    products = Products(len(rows))
    for _, _, values in _scaled_blocks(data, signals, rows):
        products.add(values)
    components = products.find_components()
    projections = [
        Projection(block=block, scale=scale, directions=values.T @ components.shares)
        for block, scale, values in _scaled_blocks(data, signals, rows)
    ]
    return projections, components.values


def _scaled_blocks(
    data: Features, signals: Sequence[str], rows: np.ndarray
) -> Iterator[tuple[Block, Scale, Matrix]]:
    """The standardized blocks of all signals, scaled so that every signal has the same total
    variance, whatever its number of features."""
    for signal in signals:
        for layer in range(data.layers):
            block = Block(signal=signal, layer=layer)
            yield block, *_scale(block, data, rows, data.layers)
    block = Block(signal=_CONFIDENCE, layer=None)
    yield block, *_scale(block, data, rows, 1)


def _scale(block: Block, data: Features, rows: np.ndarray, layers: int) -> tuple[Scale, Matrix]:
    values = block.read(data, "train")[rows]
    where = block.signal if block.layer is None else f"{block.signal}, layer {block.layer},"
    scale = standardize(values, where)
    size = np.float32(np.sqrt(values.shape[1] * layers))
    values /= size
    return Scale(mean=scale.mean, spread=scale.spread * size), values


def _fit_machine(values: Matrix, labels: np.ndarray, width: float, cost: float) -> SVC:
    """Fit the kernel SVM. Both classes have the same weight, since a model that is nearly always
    wrong gives few correct answers."""
    gamma = width / _median_distance(values)
    machine = SVC(C=cost, gamma=gamma, class_weight="balanced", cache_size=500)
    return machine.fit(values, labels)


def _median_distance(values: Matrix) -> float:
    """The median squared distance, estimated from consecutive answers in the store."""
    return float(np.median(((values[1:] - values[:-1]) ** 2).sum(axis=1)))
