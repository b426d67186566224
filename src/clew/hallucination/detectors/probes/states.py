"""Probes on the last answer token's states at one layer: linear probes at the best and at the
middle layer, and SAPLMA, a small network (256-128-64 with ReLU, trained with Adam)."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
from jaxtyping import Float32, Int
from threadpoolctl import threadpool_info, threadpool_limits

from clew.base.errors import InputError
from clew.hallucination.detectors.probes.fitting import (
    Array,
    LinearScorer,
    Matrix,
    Scale,
    choose_strength,
    fit_path,
    standardize,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, method, shared
from clew.metrics.ranking import auroc

STATES = "sequence"
# Layers fitted, and in memory, at a time.
_SIDE_BY_SIDE = 4
_READING = Lock()  # a store is read by one thread at a time
HIDDEN = (256, 128, 64)
_MOST_EPOCHS = 50
_PATIENCE = 5  # epochs without a better validation AUROC
_BATCH = 128


# What a probe learns instead of the labels: rows of the training answers, and 0 or 1 for each.
Targets = tuple[Int[np.ndarray, " some"], Int[np.ndarray, " some"]]


@dataclass(frozen=True, kw_only=True)
class LayerProbe(LinearScorer, kind="layer"):
    """A linear score of one layer's states."""

    layer: int
    strength: float
    auroc: float
    reads = (STATES,)

    def score(self, data: Features, split: str) -> Array:
        return self.linear.score(data.read(STATES, split, layer=self.layer))


@shared
def sweep_layers(data: Features) -> list[LayerProbe]:
    """A probe for every layer: it takes longest, and two methods and every seed need the best."""
    return fit_layers(data, range(data.layers))


def fit_layers(
    data: Features, layers: Iterable[int], targets: Targets | None = None
) -> list[LayerProbe]:
    """Fit a probe per layer, one layer per thread, with as many threads as BLAS would use: BLAS
    threads mostly wait in matrix-vector products."""
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    with threadpool_limits(1), ThreadPoolExecutor(min(_SIDE_BY_SIDE, threads)) as pool:
        return list(pool.map(partial(fit_layer, data, targets=targets), layers))


def fit_layer(data: Features, layer: int, targets: Targets | None = None) -> LayerProbe:
    """Fit a linear probe at one layer to the labels of the training answers, or to `targets`; the
    regularization strength is chosen on validation, in both cases by the labels."""
    with _READING:
        states, validation = (
            data.read(STATES, split, layer=layer) for split in ("train", "validation")
        )
    values = data.labels["train"]
    if targets is not None:
        states, values = states[targets[0]], targets[1]
    scale = standardize(states, f"{STATES}, layer {layer},")
    scale.apply(validation)
    choice = choose_strength(fit_path(states, values), validation, data.labels["validation"])
    linear = scale.undo(choice.linear)
    return LayerProbe(layer=layer, strength=choice.strength, linear=linear, auroc=choice.auroc)


@method("linear_probe", "Linear probe", "probe", STATES)
def learn_best_layer(data: Features) -> Fitted:
    probes, seconds = sweep_layers(data)
    return choose_layer(probes, seconds)


def choose_layer(probes: Sequence[LayerProbe], seconds: float = 0.0, **chosen: float) -> Fitted:
    """The probe that is best on validation; `seconds` were spent on it for another method."""
    best = max(probes, key=lambda probe: probe.auroc)
    chosen = {"layer": best.layer, "C": best.strength, **chosen}
    return Fitted(scorer=best, chosen=chosen, by_layer=probes, shared_seconds=seconds)


@method("linear_probe_middle", "Linear probe, middle layer", "probe", STATES)
def learn_middle_layer(data: Features) -> Fitted:
    (probe,) = fit_layers(data, [data.layers // 2])
    return Fitted(scorer=probe, chosen={"layer": probe.layer, "C": probe.strength})


@dataclass(frozen=True, kw_only=True)
class Network(Scorer, kind="perceptron"):
    """Weights and biases by layer; the score is the single output of the last one."""

    layer: int
    scale: Scale
    weights: Sequence[Float32[np.ndarray, "inputs outputs"]]
    biases: Sequence[Float32[np.ndarray, " outputs"]]
    reads = (STATES,)

    @property
    def parameters(self) -> int:
        return sum(part.size for part in (*self.weights, *self.biases))

    def score(self, data: Features, split: str) -> Array:
        """Score the answers of a split. Raises InputError for states of another dimension, that is,
        of another model."""
        states = data.read(STATES, split, layer=self.layer)
        if states.shape[1] != len(self.scale.mean):
            raise InputError(
                f"these answers have hidden states of size {states.shape[1]:,}, but the method "
                f"was fitted on size {len(self.scale.mean):,}: use answers of the same model."
            )
        return self.score_scaled(self.scale.apply(states))

    def score_scaled(self, states: Array) -> Array:
        for weights, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            states = (states @ weights + bias).clip(0)
        return (states @ self.weights[-1] + self.biases[-1])[:, 0]


@method("saplma", "SAPLMA", "probe", STATES, is_seeded=True)
def learn_saplma(data: Features, *, seed: int) -> Fitted:
    """Fit SAPLMA at the layer where a linear probe is best on validation."""
    probes, seconds = sweep_layers(data)
    layer = choose_layer(probes).chosen["layer"]
    states = data.read(STATES, "train", layer=layer)
    scale = standardize(states, f"{STATES}, layer {layer},")
    validation = scale.apply(data.read(STATES, "validation", layer=layer))
    with threadpool_limits(1):  # batches are so small that several threads would mostly wait
        network, epoch = _train(data, states, validation, layer, scale, seed)
    return Fitted(scorer=network, chosen={"layer": layer, "epochs": epoch}, shared_seconds=seconds)


def _train(
    data: Features, states: Matrix, validation: Matrix, layer: int, scale: Scale, seed: int
) -> tuple[Network, int]:
    """The network of the epoch with the best validation AUROC, and that epoch."""
    from sklearn.neural_network import MLPClassifier  # slow to import

    trainer = MLPClassifier(HIDDEN, batch_size=min(_BATCH, len(states)), random_state=seed)
    best: tuple[float, Network, int] | None = None
    for epoch in range(1, _MOST_EPOCHS + 1):
        trainer.partial_fit(states, data.labels["train"], classes=[0, 1])
        network = Network(
            layer=layer,
            scale=scale,
            weights=[part.copy() for part in trainer.coefs_],
            biases=[part.copy() for part in trainer.intercepts_],
        )
        found = auroc(data.labels["validation"], network.score_scaled(validation))
        if best is None or found > best[0]:
            best = found, network, epoch
        elif epoch - best[2] >= _PATIENCE:
            break
    assert best is not None  # there is a first epoch
    return best[1], best[2]
