"""Train detectors: samples, settings, seeds and results."""

from clew.hallucination.detectors.training.config import (
    LossSettings,
    TrainingSettings,
    TrainRunConfig,
)
from clew.hallucination.detectors.training.events import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.samples import score_samples
from clew.hallucination.detectors.training.train import (
    TrainedSeed,
    plan_models,
    train_detectors,
    train_seeds,
)

__all__ = [
    "LossSettings",
    "NetworkEnded",
    "NetworkStarted",
    "TrainRunConfig",
    "TrainedSeed",
    "TrainingSettings",
    "plan_models",
    "score_samples",
    "train_detectors",
    "train_seeds",
]
