"""Every method on the same split: run, measured, and put side by side in one folder."""

from clew.hallucination.comparison.config import CompareConfig
from clew.hallucination.comparison.methods import choose_names
from clew.hallucination.comparison.run import ComparisonResult, compare_methods

__all__ = ["CompareConfig", "ComparisonResult", "choose_names", "compare_methods"]
