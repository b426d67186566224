"""Convert legacy files into stores, and compare them, without executing anything in them."""

from clew.hallucination.legacy.comparing import PickleComparison, compare_pickle
from clew.hallucination.legacy.convert import ConvertResult, convert_folder, convert_samples
from clew.hallucination.legacy.store import SkippedSource
from clew.hallucination.legacy.torchfile import load_torch_file
from clew.hallucination.legacy.unpickle import load_pickle

__all__ = [
    "ConvertResult",
    "PickleComparison",
    "SkippedSource",
    "compare_pickle",
    "convert_folder",
    "convert_samples",
    "load_pickle",
    "load_torch_file",
]
