"""Run a language model over questions and record one trace per answer."""

from clew.hallucination.capture.config import ExtractConfig
from clew.hallucination.capture.extract import ExtractResult, extract
from clew.hallucination.capture.models import LoadedModel, load_model
from clew.hallucination.questions import Question, QuestionSet, load_questions

__all__ = [
    "ExtractConfig",
    "ExtractResult",
    "LoadedModel",
    "Question",
    "QuestionSet",
    "extract",
    "load_model",
    "load_questions",
]
