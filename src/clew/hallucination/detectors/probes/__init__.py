"""Detection methods fitted with NumPy and scikit-learn: baselines, scores without training, and
probes. They are the reference points of every comparison."""

from clew.hallucination.detectors.probes.method import Features, Fitted, Method, Outcome, Probe, run
from clew.hallucination.detectors.probes.registry import PROBES

__all__ = ["PROBES", "Features", "Fitted", "Method", "Outcome", "Probe", "run"]
