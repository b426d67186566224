"""Every method on the same split: run, measured, and put side by side in one folder."""

from clew.compare.config import CompareConfig
from clew.compare.methods import choose_names
from clew.compare.reporter import CompareReporter
from clew.compare.result import Comparison
from clew.compare.run import compare_methods

__all__ = ["CompareConfig", "CompareReporter", "Comparison", "choose_names", "compare_methods"]
