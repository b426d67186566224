"""Detection methods that are fitted with NumPy and scikit-learn: baselines, scores that need no
training, and probes. A table that lacks them has shown nothing."""

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Outcome, Probe, run
from clew.hallucination.detectors.probes.registry import PROBES

__all__ = ["PROBES", "Features", "Fitted", "Method", "Outcome", "Probe", "run"]
