"""Detectors of made-up answers: trained on samples, measured, loaded for use."""

from clew.detect.config import LossSettings, TrainRunConfig
from clew.detect.detector import Detector, load_detector
from clew.detect.networks import NETWORKS, USUAL_NETWORKS, NetworkSettings
from clew.detect.reporter import TrainReporter
from clew.detect.scoring import score_samples
from clew.detect.seeds import SeedScores, train_seeds
from clew.detect.train import plan_models, train_detectors

__all__ = [
    "NETWORKS",
    "USUAL_NETWORKS",
    "Detector",
    "LossSettings",
    "NetworkSettings",
    "SeedScores",
    "TrainReporter",
    "TrainRunConfig",
    "load_detector",
    "plan_models",
    "score_samples",
    "train_detectors",
    "train_seeds",
]
