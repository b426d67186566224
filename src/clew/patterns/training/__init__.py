"""An image classifier trained on folders of photos, and evaluated."""

from clew.patterns.training.config import LossSettings, PatternsConfig
from clew.patterns.training.evaluate import evaluate_patterns
from clew.patterns.training.events import Measuring, Prepared
from clew.patterns.training.run import train_patterns

__all__ = [
    "LossSettings",
    "Measuring",
    "PatternsConfig",
    "Prepared",
    "evaluate_patterns",
    "train_patterns",
]
