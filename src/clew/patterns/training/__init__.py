"""An image classifier trained on folders of photos, and evaluated."""

from clew.patterns.training.config import LossSettings, Measuring, PatternsConfig, Prepared
from clew.patterns.training.evaluate import evaluate_patterns
from clew.patterns.training.train import train_patterns

__all__ = [
    "LossSettings",
    "Measuring",
    "PatternsConfig",
    "Prepared",
    "evaluate_patterns",
    "train_patterns",
]
