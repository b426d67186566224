# ruff: noqa: F401 - the imports for type checkers
"""Run a language model over questions and record one trace per answer. Names are imported lazily: a
prompt is read without transformers."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.capture.clustered import extract_on_cluster
    from clew.hallucination.capture.config import ExtractConfig, ExtractResult
    from clew.hallucination.capture.extracting import extract
    from clew.hallucination.llm.models import LoadedModel, load_model
    from clew.hallucination.questions import Question, QuestionSet, load_questions

_HOMES = {
    **dict.fromkeys(("ExtractConfig", "ExtractResult"), "config"),
    "extract": "extracting",
    "extract_on_cluster": "clustered",
    **dict.fromkeys(("LoadedModel", "load_model"), ".llm.models"),
    **dict.fromkeys(("Question", "QuestionSet", "load_questions"), ".questions"),
}
__all__ = [*sorted(_HOMES)]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
