"""From traces and labels to samples: sequences over layers, graphs of attention, answers."""

from clew.features.config import PreprocessConfig
from clew.features.preprocess import PreprocessResult, preprocess_store
from clew.features.reporter import LoggingReporter, Reporter
from clew.features.summary import SamplesSummary, summarize_samples

__all__ = [
    "LoggingReporter",
    "PreprocessConfig",
    "PreprocessResult",
    "Reporter",
    "SamplesSummary",
    "preprocess_store",
    "summarize_samples",
]
