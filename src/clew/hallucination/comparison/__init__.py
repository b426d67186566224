"""Compare every method on the same split, with all results in one folder."""

from clew.hallucination.comparison.config import CompareConfig, choose_folders
from clew.hallucination.comparison.run import ComparisonResult, compare_methods

__all__ = ["CompareConfig", "ComparisonResult", "choose_folders", "compare_methods"]
