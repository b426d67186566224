"""Photos in folders: a classifier trained on them, put to use, and corrected.

Names are imported when first asked for: looking at a set needs no torch.
"""

from typing import TYPE_CHECKING

from clew.lazy import lazy_names

if TYPE_CHECKING:
    from clew.patterns.flow import FlowConfig, run_flow, train_set
    from clew.patterns.identification.config import IdentifyConfig
    from clew.patterns.identification.run import identify_folder, identify_photos
    from clew.patterns.library.choose import choose_model
    from clew.patterns.library.importing import import_photos
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.review.prepare import ReviewConfig, open_review
    from clew.patterns.trained.model import load_classifier
    from clew.patterns.training import PatternsConfig, evaluate_patterns, train_patterns

__all__ = [
    "FlowConfig",
    "IdentifyConfig",
    "PatternSet",
    "PatternsConfig",
    "ReviewConfig",
    "choose_model",
    "evaluate_patterns",
    "identify_folder",
    "identify_photos",
    "import_photos",
    "load_classifier",
    "open_review",
    "run_flow",
    "train_patterns",
    "train_set",
]
_HOMES = {
    **dict.fromkeys(("FlowConfig", "run_flow", "train_set"), "flow"),
    "IdentifyConfig": "identification.config",
    **dict.fromkeys(("identify_folder", "identify_photos"), "identification.run"),
    "choose_model": "library.choose",
    "import_photos": "library.importing",
    "PatternSet": "library.pattern_set",
    **dict.fromkeys(("ReviewConfig", "open_review"), "review.prepare"),
    "load_classifier": "trained.model",
    **dict.fromkeys(("PatternsConfig", "evaluate_patterns", "train_patterns"), "training"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
