"""Hallucination detectors: probes, networks, their training and their files. Names are imported
lazily: probes are fitted without torch, a trained network is used without scikit-learn.
"""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:
    from clew.hallucination.detectors.detector import Detector
    from clew.hallucination.detectors.loading import load_detector
    from clew.hallucination.detectors.probes import PROBES, DetectionMethod, register_method
    from clew.hallucination.detectors.registry import NETWORKS, NetworkSettings
    from clew.hallucination.detectors.training import (
        LossSettings,
        TrainRunConfig,
        score_samples,
        train_detectors,
    )

__all__ = [
    "NETWORKS",
    "PROBES",
    "DetectionMethod",
    "Detector",
    "LossSettings",
    "NetworkSettings",
    "TrainRunConfig",
    "load_detector",
    "register_method",
    "score_samples",
    "train_detectors",
]
_HOMES = {
    "Detector": "detector",
    "load_detector": "loading",
    **dict.fromkeys(("NETWORKS", "NetworkSettings"), "registry"),
    **dict.fromkeys(("PROBES", "DetectionMethod", "register_method"), "probes"),
    **dict.fromkeys(
        ("LossSettings", "TrainRunConfig", "score_samples", "train_detectors"), "training"
    ),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
