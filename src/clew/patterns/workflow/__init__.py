"""The steps with photos, one function each: `clew.patterns.train`, `identify`, ... The commands
take their options from these functions.

Importing these modules is fast: heavy libraries are imported when a function is called.
"""

from clew.patterns.workflow.cleaning import clean_photos, find_similar
from clew.patterns.workflow.evaluating import evaluate
from clew.patterns.workflow.reviewing import review_photos, run_flow
from clew.patterns.workflow.serving import serve
from clew.patterns.workflow.sets import create_set, describe_set, import_photos, list_sets
from clew.patterns.workflow.training import train
from clew.patterns.workflow.using import export, identify, load_classifier, recognize

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
