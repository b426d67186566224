"""Photo classifiers: train one on folders of photos, identify new photos, and correct it.

Names are imported on first use: describing a set does not load torch.
"""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.workflow import (
        clean_photos,
        create_set,
        describe_set,
        evaluate,
        export,
        find_similar,
        identify,
        import_photos,
        list_sets,
        load_classifier,
        recognize,
        review_photos,
        run_flow,
        serve,
        train,
    )

__all__ = [
    "PatternSet",
    "clean_photos",
    "create_set",
    "describe_set",
    "evaluate",
    "export",
    "find_similar",
    "identify",
    "import_photos",
    "list_sets",
    "load_classifier",
    "recognize",
    "review_photos",
    "run_flow",
    "serve",
    "train",
]
_STEPS = (name for name in __all__ if name != "PatternSet")
__getattr__, __dir__ = lazy_names(
    __name__, {"PatternSet": "library.pattern_set", **dict.fromkeys(_STEPS, "workflow")}
)
