"""Contrastive embedding with nearest neighbors, after HalluLens: an autoencoder learns a small
space where correct answers lie together, and a new answer is as risky as the training
answers near it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from clew.base.progress import ignore_event
from clew.hallucination.detectors.probes.fitting import Array, Matrix, draw_answers, library
from clew.hallucination.detectors.probes.fusion import (
    CONFIDENCE,
    Projection,
    find_components,
    project,
)
from clew.hallucination.detectors.probes.method import Features, Fitted, Scorer, method, shared
from clew.metrics.ranking import auroc

if TYPE_CHECKING:
    from clew.hallucination.detectors.networks.contrastive import ContrastiveAutoencoder

STATES = ("sequence", "state_mean")
_COMPONENTS = 256
_EPOCHS, _PATIENCE, _BATCH, _RATE = 40, 10, 128, 2e-3
# How fast the weight of a training answer falls with its distance.
_WIDTHS = (0.05, 0.1, 0.2)


@dataclass(frozen=True, kw_only=True)
class Layer:
    weights: Float32[np.ndarray, "inputs outputs"]
    bias: Float32[np.ndarray, " outputs"]


@dataclass(frozen=True, kw_only=True)
class EmbeddedNeighbors(Scorer, kind="neighbors"):
    """Kernel-weighted nearest neighbors: the log-ratio of the mean weights exp(similarity / width)
    of the hallucinated and of the correct training answers."""

    projections: Sequence[Projection]
    scale: float
    layers: Sequence[Layer]
    hallucinated: Float32[np.ndarray, "answers size"]
    correct: Float32[np.ndarray, "answers size"]
    width: float

    @property
    def parameters(self) -> int:
        sizes = [one.weights.size + one.bias.size for one in self.layers]
        sizes += [one.directions.size for one in self.projections]
        return sum(sizes) + self.hallucinated.size + self.correct.size

    @property
    def fields(self) -> frozenset[str]:
        signals = {projection.signal for projection in self.projections}
        return frozenset({*(signals & {*STATES}), *CONFIDENCE})

    def score(self, data: Features, split: str) -> Array:
        return self.compare(self.embed(self.scale * project(self.projections, data, split)))

    def embed(self, values: Array) -> Array:
        """Directions `[answers, size]`."""
        *inner, last = self.layers
        for layer in inner:
            values = (values @ layer.weights + layer.bias).clip(0)
        latent = values @ last.weights + last.bias
        return latent / ((latent * latent).sum(1) ** 0.5)[:, None].clip(1e-12)

    def compare(self, embedded: Array) -> Array:
        xp = library(embedded)
        near, far = (
            xp.log(xp.exp(embedded @ known.T / self.width).mean(1))
            for known in (self.hallucinated, self.correct)
        )
        return near - far


@method(
    *("contrastive", "Contrastive embedding, kNN", "probe", "sequence", *CONFIDENCE),
    is_seeded=True,
    also_reads=("state_mean",),
)
def learn_contrastive(data: Features, *, seed: int) -> Fitted:
    """Train the autoencoder and embed the training answers; the epoch and the width of the kernel
    are chosen on validation."""
    inputs, seconds = _read_inputs(data)
    network, epoch = _train(inputs, data.labels["validation"], seed)
    fitted = {width: _make_scorer(inputs, network, width) for width in _WIDTHS}
    labels = data.labels["validation"]

    def measure(width: float) -> float:
        scorer = fitted[width]
        return auroc(labels, scorer.compare(scorer.embed(inputs.validation)))

    width = max(fitted, key=measure)
    return Fitted(
        scorer=fitted[width], chosen={"epochs": epoch, "width": width}, shared_seconds=seconds
    )


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """The components of the training answers (up to 8,192) and of the validation answers, scaled to
    variance 1 in the mean."""

    projections: Sequence[Projection]
    scale: float
    training: Matrix
    labels: np.ndarray
    validation: Matrix


@shared
def _read_inputs(data: Features) -> _Inputs:
    """Every seed has the same ones."""
    rows = draw_answers(len(data.labels["train"]))
    signals = [name for name in STATES if name in data.fields]
    projections, training = find_components(data, signals, rows, _COMPONENTS)
    scale = 1 / max(float(training.std()), 1e-12)
    return _Inputs(
        projections=projections,
        scale=scale,
        training=training * np.float32(scale),
        labels=data.labels["train"][rows],
        validation=project(projections, data, "validation") * np.float32(scale),
    )


def _train(inputs: _Inputs, labels: np.ndarray, seed: int) -> tuple["ContrastiveAutoencoder", int]:
    """The network of the epoch with the best validation AUROC, and that epoch."""
    import torch  # probes are imported without it

    from clew.engine import PlanRequest, TrainConfig, fit
    from clew.hallucination.detectors.networks.contrastive import (
        ContrastiveAutoencoder,
        FeatureBatches,
    )

    training, validation = map(torch.from_numpy, (inputs.training, inputs.validation))
    known, checked = (torch.from_numpy(of.astype(np.int64)) for of in (inputs.labels, labels))
    torch.manual_seed(seed)
    network = ContrastiveAutoencoder(training, known)
    with TemporaryDirectory() as folder:
        result = fit(
            network,
            FeatureBatches(training, known, _BATCH, shuffle=True),
            FeatureBatches(validation, checked, _BATCH),
            config=TrainConfig(epochs=_EPOCHS, patience=_PATIENCE, lr=_RATE, seed=seed),
            request=PlanRequest(device="cpu", precision="fp32", compile=False, calibrate=False),
            output_dir=Path(folder),
            reporter=ignore_event,
        )
    return network.eval(), result.best_epoch


def _make_scorer(
    inputs: _Inputs, network: "ContrastiveAutoencoder", width: float
) -> EmbeddedNeighbors:
    layers = [
        Layer(
            weights=np.ascontiguousarray(layer.weight.detach().numpy().T),
            bias=layer.bias.detach().numpy().copy(),
        )
        for layer in network.layers
    ]
    nobody = np.zeros((0, len(layers[-1].bias)), np.float32)
    encoder = EmbeddedNeighbors(
        projections=inputs.projections,
        scale=inputs.scale,
        layers=layers,
        hallucinated=nobody,
        correct=nobody,
        width=width,
    )
    known = encoder.embed(inputs.training)
    hallucinated = inputs.labels > 0
    return replace(encoder, hallucinated=known[hallucinated], correct=known[~hallucinated])
