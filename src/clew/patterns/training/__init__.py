"""An image classifier trained on folders of photos, and evaluated."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names
from clew.patterns.training.config import LossSettings, Measuring, PatternsConfig, Prepared

if TYPE_CHECKING:
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
__getattr__, __dir__ = lazy_names(
    __name__, {"evaluate_patterns": "evaluate", "train_patterns": "train"}
)
