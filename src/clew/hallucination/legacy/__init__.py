"""Reads what the older tools wrote, without running anything in it, and makes stores of it."""

from clew.hallucination.legacy.convert import ConvertResult, convert_folder
from clew.hallucination.legacy.store import Skipped
from clew.hallucination.legacy.torchfile import load_torch_file
from clew.hallucination.legacy.unpickle import load_pickle

__all__ = ["ConvertResult", "Skipped", "convert_folder", "load_pickle", "load_torch_file"]
