"""Compare every method on the same split, with all results in one folder."""

from clew.hallucination.comparison.run import ComparisonResult, compare_methods
from clew.hallucination.comparison.settings import CompareConfig, choose_folders

__all__ = ["CompareConfig", "ComparisonResult", "choose_folders", "compare_methods"]
