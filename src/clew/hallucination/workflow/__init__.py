# ruff: noqa: F401 - the imports for type checkers
"""The steps from questions to hallucination detectors, one function each: `clew.extract`,
`clew.label`, ... The commands take their options from these functions.

Importing these modules is fast: heavy libraries are imported when a function is called.
"""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.workflow.adapting import adapt
    from clew.hallucination.workflow.asking import ask, serve
    from clew.hallucination.workflow.batch_scorer import scorer
    from clew.hallucination.workflow.calibrating import calibrate
    from clew.hallucination.workflow.checking import check
    from clew.hallucination.workflow.preparing import extract, label, load_model, preprocess
    from clew.hallucination.workflow.pushing import push
    from clew.hallucination.workflow.scoring import score
    from clew.hallucination.workflow.stores import convert, inspect, show, verify
    from clew.hallucination.workflow.training import compare, plan, train

_HOMES = {
    "adapt": "adapting",
    **dict.fromkeys(("ask", "serve"), "asking"),
    "calibrate": "calibrating",
    "check": "checking",
    **dict.fromkeys(("extract", "label", "load_model", "preprocess"), "preparing"),
    "push": "pushing",
    "score": "scoring",
    "scorer": "batch_scorer",
    **dict.fromkeys(("convert", "inspect", "show", "verify"), "stores"),
    **dict.fromkeys(("compare", "plan", "train"), "training"),
}
__all__ = [*sorted(_HOMES)]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
