"""Detectors of made-up answers: trained on samples, measured, loaded for use."""

from clew.hallucination.detectors.training.config import LossSettings, TrainRunConfig
from clew.hallucination.detectors.training.events import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.scoring import score_samples
from clew.hallucination.detectors.training.seeds import SeedScores, train_seeds
from clew.hallucination.detectors.training.train import plan_models, train_detectors

__all__ = [
    "NetworkEnded",
    "NetworkStarted",
    "LossSettings",
    "SeedScores",
    "TrainRunConfig",
    "plan_models",
    "score_samples",
    "train_detectors",
    "train_seeds",
]
