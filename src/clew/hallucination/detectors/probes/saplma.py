"""SAPLMA: a small network on one layer's states, 256-128-64 with ReLU, trained with Adam."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from clew.errors import InputError
from clew.hallucination.detectors.probes.linear import STATES, sweep_layers
from clew.hallucination.detectors.probes.logistic import Matrix, Scale, standardize
from clew.hallucination.detectors.probes.method import Features, Fitted, Scores
from clew.metrics import auroc

HIDDEN = (256, 128, 64)
_MOST_EPOCHS = 50
_PATIENCE = 5  # epochs without a better AUROC in the validation split
_BATCH = 128


@dataclass(frozen=True, kw_only=True)
class Network:
    """Weights and biases, layer after layer; the score is the last one's only output."""

    layer: int
    scale: Scale
    weights: Sequence[Float32[np.ndarray, "inputs outputs"]]
    biases: Sequence[Float32[np.ndarray, " outputs"]]

    @property
    def parameters(self) -> int:
        return sum(part.size for part in (*self.weights, *self.biases))

    def score(self, data: Features, split: str) -> Scores:
        """Raises InputError for states of another width, those of another model."""
        states = data.read(STATES, split, layer=self.layer)
        if states.shape[1] != len(self.scale.mean):
            raise InputError(
                f"these answers have states of {states.shape[1]:,} numbers, the method was fitted "
                f"to {len(self.scale.mean):,}: score answers of the same model."
            )
        return self.score_scaled(self.scale.apply(states))

    def score_scaled(self, states: Matrix) -> Scores:
        for weights, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            states = np.maximum(states @ weights + bias, 0)
        return (states @ self.weights[-1] + self.biases[-1])[:, 0]


def learn_saplma(data: Features, *, seed: int) -> Fitted:
    """At the layer where a linear probe is best in the validation split."""
    sweep, was_there = sweep_layers(data)
    layer = sweep.best.layer
    states = data.read(STATES, "train", layer=layer)
    scale = standardize(states, f"{STATES}, layer {layer},")
    validation = scale.apply(data.read(STATES, "validation", layer=layer))
    with threadpool_limits(1):  # batches are so small that several threads mostly wait
        network, epoch = _train(data, states, validation, layer, scale, seed)
    return Fitted(
        scorer=network,
        chosen={"layer": layer, "epochs": epoch},
        shared_seconds=sweep.seconds if was_there else 0.0,
    )


def _train(
    data: Features, states: Matrix, validation: Matrix, layer: int, scale: Scale, seed: int
) -> tuple[Network, int]:
    """The network of the epoch with the best AUROC in the validation split, and that epoch."""
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
