"""Detection methods fitted with NumPy and scikit-learn: baselines, scores without training, and
probes. They are the reference points of every comparison."""

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Outcome, Probe, run
from clew.hallucination.detectors.probes.own import DetectionMethod
from clew.hallucination.detectors.probes.registration import register_method
from clew.hallucination.detectors.probes.registry import PROBES

__all__ = [
    "PROBES",
    "DetectionMethod",
    "Features",
    "Fitted",
    "Method",
    "Outcome",
    "Probe",
    "register_method",
    "run",
]
