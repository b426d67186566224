"""A classifier trained on folders of photos, and measured."""

from clew.patterns.training.config import LossSettings, PatternsConfig
from clew.patterns.training.evaluate import evaluate_patterns
from clew.patterns.training.reporter import PatternsReporter, Preparation
from clew.patterns.training.run import train_patterns

__all__ = [
    "LossSettings",
    "PatternsConfig",
    "PatternsReporter",
    "Preparation",
    "evaluate_patterns",
    "train_patterns",
]
