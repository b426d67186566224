"""The steps from questions to hallucination detectors, one function each: `clew.extract`,
`clew.label`, ... The commands take their options from these functions.

Importing these modules is fast: heavy libraries are imported when a function is called.
"""

from clew.hallucination.workflow.asking import ask
from clew.hallucination.workflow.calibrating import calibrate
from clew.hallucination.workflow.comparing import compare
from clew.hallucination.workflow.extracting import extract, load_model
from clew.hallucination.workflow.labeling import label
from clew.hallucination.workflow.planning import plan
from clew.hallucination.workflow.preprocessing import preprocess
from clew.hallucination.workflow.scoring import score
from clew.hallucination.workflow.serving import serve
from clew.hallucination.workflow.showing import show
from clew.hallucination.workflow.stores import convert, inspect, verify
from clew.hallucination.workflow.training import train

__all__ = [
    "ask",
    "calibrate",
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
