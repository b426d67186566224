"""Probes on many numbers of every layer, brought down to 512 by PCA: LapEigvals, AttnLogDet, and
the states of all layers. No more than one layer is in memory: a score that is linear in the
components is again one weight a feature, which one more pass over the layers gives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

from clew.errors import InputError
from clew.hallucination.detectors.probes.components import Components, Products, draw_answers
from clew.hallucination.detectors.probes.logistic import (
    Linear,
    Matrix,
    Scale,
    fit_path,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.metrics import auroc

SPECTRUM, LOG_DIAGONAL, STATES = "laplacian_top", "log_diagonal_all", "sequence"
# How many of every head's largest eigenvalues are taken.
RANKS = (5, 10, 25, 50, 100)


@dataclass(frozen=True, kw_only=True)
class LayersProbe:
    """A linear score of a field's numbers in all layers."""

    field: str
    layers: Sequence[Linear]

    @property
    def parameters(self) -> int:
        return sum(int(np.count_nonzero(layer.weights)) for layer in self.layers) + 1

    def score(self, data: Features, split: str) -> Scores:
        if data.layers != len(self.layers):
            raise InputError(
                f"these answers have {data.layers} layers, the method was fitted to "
                f"{len(self.layers)}: score answers of the same model."
            )
        scores = np.zeros(len(data.labels[split]), np.float32)
        for number, linear in enumerate(self.layers):
            scores += linear.score(_read_flat(data, self.field, split, number))
        return scores


def learn_lapeigvals(data: Features) -> Fitted:
    depth = data.read(SPECTRUM, "validation", layer=0).shape[-1]
    ranks = [k for k in RANKS if k <= depth]
    layers = _ScaledLayers(data, SPECTRUM, depth=depth)
    return _choose(layers, _fit_candidates(layers, ranks, balanced=True))


def learn_attn_logdet(data: Features) -> Fitted:
    layers = _ScaledLayers(data, LOG_DIAGONAL)
    return _choose(layers, _fit_candidates(layers, [1], balanced=True))


def learn_all_layers(data: Features) -> Fitted:
    layers = _ScaledLayers(data, STATES)
    return _choose(layers, _fit_candidates(layers, [1], balanced=False))


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A fitted score: its weights are the features of the answers times their `shares`."""

    ranks: int
    strength: float
    shares: Float32[np.ndarray, " answers"]
    bias: float


class _ScaledLayers:
    """A field layer by layer, every feature scaled as its training answers are.

    `ranks` tells which features are taken together: with a `depth`, features are that many
    numbers a head, largest first, and their rank is the place among them.
    """

    def __init__(self, data: Features, field: str, *, depth: int = 1) -> None:
        self.data, self.field, self.depth = data, field, depth
        self.labels = data.labels["train"]
        self.scales: dict[int, Scale] = {}
        self.rows = draw_answers(len(self.labels))

    def read_training(self, layer: int) -> Matrix:
        values = _read_flat(self.data, self.field, "train", layer)
        self.scales[layer] = standardize(values, f"{self.field}, layer {layer},")
        return values

    def read_some(self, layer: int) -> Matrix:
        """Of those training answers that the components are made of."""
        values = self.read_training(layer)
        return values if len(self.rows) == len(values) else values[self.rows]

    def read_validation(self, layer: int) -> Matrix:
        values = _read_flat(self.data, self.field, "validation", layer)
        return self.scales[layer].apply(values)

    def ranks(self, features: int) -> Int[np.ndarray, " features"]:
        return np.arange(features) % self.depth


def _fit_candidates(
    layers: _ScaledLayers, ranks: Sequence[int], *, balanced: bool
) -> Iterator[_Candidate]:
    """Every number of ranks with every strength. Those of fewer ranks are among those of more: the
    products are only added to."""
    products = Products(len(layers.rows))
    for low, high in zip([0, *ranks], ranks, strict=False):
        for layer in range(layers.data.layers):
            values = layers.read_some(layer)
            place = layers.ranks(values.shape[1])
            products.add(np.ascontiguousarray(values[:, (low <= place) & (place < high)]))
        components = products.find_components()
        coordinates = _coordinates(layers, components, high)
        for strength, linear in fit_path(coordinates, layers.labels, balanced=balanced):
            shares = components.shares @ linear.weights
            yield _Candidate(ranks=high, strength=strength, shares=shares, bias=linear.bias)


def _coordinates(layers: _ScaledLayers, components: Components, ranks: int) -> Matrix:
    """Of all training answers; those that the components are made of know theirs."""
    if len(layers.rows) == len(layers.labels):
        return components.values
    result = np.zeros((len(layers.labels), components.values.shape[1]), np.float32)
    for layer in range(layers.data.layers):
        values = layers.read_training(layer)
        directions = values[layers.rows].T @ components.shares
        directions[layers.ranks(len(directions)) >= ranks] = 0
        result += values @ directions
    return result


def _choose(layers: _ScaledLayers, fitted: Iterator[_Candidate]) -> Fitted:
    """The candidate that is best in the validation split, with its weights at every layer."""
    candidates = list(fitted)
    shares = np.stack([candidate.shares for candidate in candidates], axis=1)
    scores = np.zeros((len(layers.data.labels["validation"]), len(candidates)), np.float32)
    weights = []
    for layer in range(layers.data.layers):
        found = layers.read_some(layer).T @ shares
        place = layers.ranks(len(found))
        found *= place[:, None] < [candidate.ranks for candidate in candidates]
        scores += layers.read_validation(layer) @ found
        weights.append(found)
    labels = layers.data.labels["validation"]
    best = int(np.argmax([auroc(labels, column) for column in scores.T]))
    chosen: dict[str, int | float] = {"C": candidates[best].strength}
    if layers.depth > 1:
        chosen["k"] = candidates[best].ranks
    probes = _unscale(layers, [found[:, best] for found in weights], candidates[best].bias)
    return Fitted(scorer=LayersProbe(field=layers.field, layers=probes), chosen=chosen)


def _unscale(layers: _ScaledLayers, weights: Sequence[np.ndarray], bias: float) -> list[Linear]:
    """The bias is the first layer's."""
    biases = [bias, *[0.0] * (len(weights) - 1)]
    return [
        layers.scales[number].undo(Linear(weights=found, bias=biases[number]))
        for number, found in enumerate(weights)
    ]


def _read_flat(data: Features, field: str, split: str, layer: int) -> Matrix:
    values = data.read(field, split, layer=layer)
    return values.reshape(len(values), -1)
