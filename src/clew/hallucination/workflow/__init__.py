"""The steps from questions to hallucination detectors, one function each: `clew.extract`,
`clew.label`, ... The commands take their options from these functions.

Importing these modules is fast: heavy libraries are imported when a function is called.
"""

from clew.hallucination.workflow.adapting import adapt
from clew.hallucination.workflow.asking import ask, serve
from clew.hallucination.workflow.calibrating import calibrate
from clew.hallucination.workflow.checking import check
from clew.hallucination.workflow.preparing import extract, label, load_model, preprocess
from clew.hallucination.workflow.scoring import score
from clew.hallucination.workflow.stores import convert, inspect, show, verify
from clew.hallucination.workflow.training import compare, plan, train

__all__ = [
    "adapt",
    "ask",
    "calibrate",
    "check",
    "compare",
    "convert",
    "extract",
    "inspect",
    "label",
    "load_model",
    "plan",
    "preprocess",
    "score",
    "serve",
    "show",
    "train",
    "verify",
]
