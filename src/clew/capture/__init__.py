"""Run a language model over questions and record one trace an answer."""

from clew.capture.config import ExtractConfig
from clew.capture.extract import ExtractResult, extract
from clew.capture.models import LoadedModel, load_model
from clew.questions import Question, QuestionSet, load_questions

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
