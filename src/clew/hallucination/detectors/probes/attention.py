"""Probes on attention: one number per layer and head (LLM-Check's attention score, Lookback Lens),
or many per layer, reduced to 512 by PCA (LapEigvals, AttnLogDet, the states of all layers). For the
latter, only one layer is in memory at a time: a score that is linear in the components is one
weight per feature, computed in one more pass over the layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fitting import (
    Array,
    Components,
    Linear,
    LinearScorer,
    Matrix,
    Products,
    Scale,
    choose_strength,
    draw_answers,
    fit_path,
    like,
    standardize,
    where,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, layers_of, method
from clew.metrics.ranking import auroc

DIAGONAL = "log_diagonal_answer"
DIAGONALS = (DIAGONAL, "token_logprobs")
LOOKBACK = "lookback"
SPECTRUM, LOG_DIAGONAL, STATES = "laplacian_top", "log_diagonal_all", "sequence"
# So many answers are read with all their layers at once.
FEW = 64
# How many of every head's largest eigenvalues are used.
RANKS = (5, 10, 25, 50, 100)


@dataclass(frozen=True, kw_only=True)
class AttentionScore(Scorer, kind="attention_score"):
    """Per layer, the sum over heads of the mean log A_ii over the answer's rows. By definition,
    higher means more likely hallucinated. An answer without tokens gets the median of the training
    answers.
    """

    layer: int
    without: float
    reads = DIAGONALS

    def score(self, data: Features, split: str) -> Array:
        found = data.read(DIAGONAL, split, layer=self.layer).sum(axis=1)
        known = like(found, has_tokens(data, split))
        return where(known, found, self.without)


@dataclass(frozen=True, kw_only=True)
class HeadsProbe(LinearScorer, kind="heads"):
    """A linear score of one number per layer and head."""

    field: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def score(self, data: Features, split: str) -> Array:
        return self.linear.score(read_flat(data, self.field, split))


@method("attention_score", "Attention score (LLM-Check)", "no training", *DIAGONALS)
def learn_attention_score(data: Features) -> Fitted:
    """Fit LLM-Check's attention score; the layer with the best validation AUROC is used."""
    known, by_layer = has_tokens(data, "train"), []
    for layer in range(len(layers_of(DIAGONAL, data))):
        found = data.read(DIAGONAL, "train", layer=layer).sum(axis=1)[known]
        without = float(np.median(found)) if len(found) else 0.0
        by_layer.append(AttentionScore(layer=layer, without=without))
    labels = data.labels["validation"]
    best = max(by_layer, key=lambda one: auroc(labels, one.score(data, "validation")))
    chosen = {"layer": layers_of(DIAGONAL, data)[best.layer]}
    return Fitted(scorer=best, chosen=chosen, by_layer=by_layer)


@method("lookback", "Lookback Lens", "probe", LOOKBACK)
def learn_lookback(data: Features) -> Fitted:
    ratios = read_flat(data, LOOKBACK, "train")
    scale = standardize(ratios, LOOKBACK)
    validation = scale.apply(read_flat(data, LOOKBACK, "validation"))
    path = fit_path(ratios, data.labels["train"])
    choice = choose_strength(path, validation, data.labels["validation"])
    probe = HeadsProbe(field=LOOKBACK, linear=scale.undo(choice.linear))
    return Fitted(scorer=probe, chosen={"C": choice.strength})


def has_tokens(data: Features, split: str) -> np.ndarray:
    return np.array([len(answer) > 0 for answer in data.read("token_logprobs", split)], bool)


def read_flat(data: Features, field: str, split: str, layer: int | None = None) -> Array:
    values = data.read(field, split, layer=layer)
    return values.reshape(len(values), -1)


@dataclass(frozen=True, kw_only=True)
class LayersProbe(Scorer, kind="layers"):
    """A linear score of a field's values in all layers."""

    field: str
    weights: Float32[np.ndarray, "layers features"]
    bias: float

    @property
    def parameters(self) -> int:
        return int((self.weights != 0).sum()) + 1

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def score(self, data: Features, split: str) -> Array:
        layers = len(layers_of(self.field, data))
        if layers != len(self.weights):
            raise InputError(
                f"these answers have {layers} layers, but the method was fitted on "
                f"{len(self.weights)}: use answers of the same model."
            )
        parts = read_layers(data, self.field, split, features=self.weights.shape[1])
        scores = (
            Linear(weights=self.weights[layers].reshape(-1), bias=0.0).score(values)
            for layers, values in parts
        )
        return sum(scores, self.bias)


def read_layers(
    data: Features,
    field: str,
    split: str,
    *,
    every: int = 1,
    ranks: int | None = None,
    features: int | None = None,
) -> Iterator[tuple[slice, Array]]:
    """A field's values `[rows, features]`: of all layers at once for a few answers, layer by layer
    for many, which would not fit in memory. `every`: only one layer in so many; `ranks`: only so
    many eigenvalues, or as many as give a layer this number of `features`. The slice is the place
    of the layers among those read."""
    is_small = len(data.labels[split]) <= FEW
    layers = range(0, len(layers_of(field, data)), every)
    for place, layer in enumerate([None] if is_small else layers):
        values = data.read(field, split, layer=layer)
        values = values[:, ::every] if is_small else values
        if field == SPECTRUM:
            values = values[..., : ranks or (features and features // values.shape[-2])]
        where = slice(None) if is_small else slice(place, place + 1)
        yield where, values.reshape(len(values), -1)


@method("lapeigvals", "LapEigvals", "probe", SPECTRUM)
def learn_lapeigvals(data: Features) -> Fitted:
    depth = data.read(SPECTRUM, "validation", layer=0).shape[-1]
    ranks = [k for k in RANKS if k <= depth]
    layers = _ScaledLayers(data, SPECTRUM, depth=depth)
    return _choose(layers, _fit_candidates(layers, ranks, balanced=True))


@method("attn_logdet", "AttnLogDet", "probe", LOG_DIAGONAL)
def learn_attn_logdet(data: Features) -> Fitted:
    layers = _ScaledLayers(data, LOG_DIAGONAL)
    return _choose(layers, _fit_candidates(layers, [1], balanced=True))


@method("linear_probe_pca", "Linear probe, all layers (PCA)", "probe", STATES)
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
    """A field layer by layer, with every feature standardized by the training answers. `ranks`
    groups features: with a `depth`, there are that many features per head, largest first, and the
    rank is the position among them.
    """

    def __init__(self, data: Features, field: str, *, depth: int = 1) -> None:
        self.data, self.field, self.depth = data, field, depth
        self.labels = data.labels["train"]
        self.count, self.scales = len(layers_of(field, data)), dict[int, Scale]()
        self.rows = draw_answers(len(self.labels))

    def read_training(self, layer: int) -> Matrix:
        values = read_flat(self.data, self.field, "train", layer)
        self.scales[layer] = standardize(values, f"{self.field}, layer {layer},")
        return values

    def read_some(self, layer: int) -> Matrix:
        """A layer's features of the training answers that the components are computed from."""
        values = self.read_training(layer)
        return values if len(self.rows) == len(values) else values[self.rows]

    def read_validation(self, layer: int) -> Matrix:
        values = read_flat(self.data, self.field, "validation", layer)
        return self.scales[layer].apply(values)

    def ranks(self, features: int) -> Int[np.ndarray, " features"]:
        return np.arange(features) % self.depth


def _fit_candidates(
    layers: _ScaledLayers, ranks: Sequence[int], *, balanced: bool
) -> Iterator[_Candidate]:
    """Every number of ranks with every regularization strength. Products for fewer ranks are part
    of those for more, so they are accumulated."""
    products = Products(len(layers.rows))
    for low, high in zip([0, *ranks], ranks, strict=False):
        for layer in range(layers.count):
            values = layers.read_some(layer)
            place = layers.ranks(values.shape[1])
            products.add(np.ascontiguousarray(values[:, (low <= place) & (place < high)]))
        components = products.find_components()
        coordinates = _coordinates(layers, components, high)
        for strength, linear in fit_path(coordinates, layers.labels, balanced=balanced):
            shares = components.shares @ linear.weights
            yield _Candidate(ranks=high, strength=strength, shares=shares, bias=linear.bias)


def _coordinates(layers: _ScaledLayers, components: Components, ranks: int) -> Matrix:
    """The coordinates of all training answers; those that the components are computed from already
    have theirs."""
    if len(layers.rows) == len(layers.labels):
        return components.values
    result = np.zeros((len(layers.labels), components.values.shape[1]), np.float32)
    for layer in range(layers.count):
        values = layers.read_training(layer)
        directions = values[layers.rows].T @ components.shares
        directions[layers.ranks(len(directions)) >= ranks] = 0
        result += values @ directions
    return result


def _choose(layers: _ScaledLayers, fitted: Iterator[_Candidate]) -> Fitted:
    """The best candidate on validation, with its weights at every layer."""
    candidates = list(fitted)
    shares = np.stack([candidate.shares for candidate in candidates], axis=1)
    scores = np.zeros((len(layers.data.labels["validation"]), len(candidates)), np.float32)
    weights = []
    for layer in range(layers.count):
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
    # Only the ranks that are used: other stores may have fewer than this one.
    is_used = layers.ranks(len(weights[0])) < candidates[best].ranks
    unscaled = [
        layers.scales[layer].undo(Linear(weights=found[:, best], bias=0.0))
        for layer, found in enumerate(weights)
    ]
    probe = LayersProbe(
        field=layers.field,
        weights=np.stack([linear.weights[is_used] for linear in unscaled]),
        bias=candidates[best].bias + sum(linear.bias for linear in unscaled),
    )
    return Fitted(scorer=probe, chosen=chosen)
