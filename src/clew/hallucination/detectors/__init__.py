# ruff: noqa: F401 - the imports for type checkers
"""Hallucination detectors: probes, networks, their training and their files. Names are imported
lazily: probes are fitted without torch, a trained network is used without scikit-learn.
"""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.detectors.detector import Detector
    from clew.hallucination.detectors.detector_folder import load_detector
    from clew.hallucination.detectors.probes.own import DetectionMethod
    from clew.hallucination.detectors.probes.registry import PROBES, register_method
    from clew.hallucination.detectors.registry import NETWORKS, NetworkSettings
    from clew.hallucination.detectors.training.samples import score_samples
    from clew.hallucination.detectors.training.settings import LossSettings, TrainRunConfig
    from clew.hallucination.detectors.training.train import train_detectors

_HOMES = {
    "DetectionMethod": "probes.own",
    "Detector": "detector",
    "load_detector": "detector_folder",
    **dict.fromkeys(("NETWORKS", "NetworkSettings"), "registry"),
    **dict.fromkeys(("PROBES", "register_method"), "probes.registry"),
    **dict.fromkeys(("LossSettings", "TrainRunConfig"), "training.settings"),
    "score_samples": "training.samples",
    "train_detectors": "training.train",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
