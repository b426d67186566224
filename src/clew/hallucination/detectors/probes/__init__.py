"""Detection methods fitted with NumPy and scikit-learn: baselines, scores without training, and
probes. Without them a comparison shows nothing."""

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Outcome, Probe, run
from clew.hallucination.detectors.probes.registry import PROBES

__all__ = ["PROBES", "Features", "Fitted", "Method", "Outcome", "Probe", "run"]
