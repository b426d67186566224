"""The steps with photos, one function each: `clew.patterns.train`, `identify`, ... The commands
take their options from these functions.

Importing these modules is fast: heavy libraries are imported when a function is called.
"""

from clew.patterns.workflow.sets import (
    clean_photos,
    create_set,
    describe_set,
    find_similar,
    import_photos,
    list_sets,
    review_photos,
    run_flow,
)
from clew.patterns.workflow.training import evaluate, train
from clew.patterns.workflow.using import export, identify, load_classifier, recognize, serve

__all__ = [
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
