"""Detectors of made-up answers: trained on samples, measured, loaded for use."""

from clew.detect.config import LossSettings, TrainRunConfig
from clew.detect.detector import Detector, load_detector
from clew.detect.networks import NETWORKS, NetworkSettings
from clew.detect.reporter import TrainReporter
from clew.detect.train import plan_models, train_detectors

__all__ = [
    "NETWORKS",
    "Detector",
    "LossSettings",
    "NetworkSettings",
    "TrainReporter",
    "TrainRunConfig",
    "load_detector",
    "plan_models",
    "train_detectors",
]
