"""Build samples from traces and labels: sequences over layers, attention graphs, answers."""

from clew.hallucination.samples.making.config import PreprocessConfig
from clew.hallucination.samples.making.preprocess import PreprocessResult, preprocess_store
from clew.hallucination.samples.making.summary import SamplesSummary, summarize_samples

__all__ = [
    "PreprocessConfig",
    "PreprocessResult",
    "SamplesSummary",
    "preprocess_store",
    "summarize_samples",
]
