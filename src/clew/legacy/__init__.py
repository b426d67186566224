"""Reads what the older tools wrote, without running anything in it, and makes stores of it."""

from clew.legacy.convert import ConvertResult, convert_folder
from clew.legacy.store import Skipped
from clew.legacy.torchfile import load_torch_file
from clew.legacy.unpickle import load_pickle

__all__ = ["ConvertResult", "Skipped", "convert_folder", "load_pickle", "load_torch_file"]
