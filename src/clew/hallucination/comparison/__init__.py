"""Compare every method on the same split, with all results in one folder."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names
from clew.hallucination.comparison.settings import CompareConfig, choose_folders

if TYPE_CHECKING:
    from clew.hallucination.comparison.run import ComparisonResult, compare_methods

__all__ = ["CompareConfig", "ComparisonResult", "choose_folders", "compare_methods"]
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__[1::2], "run"))
