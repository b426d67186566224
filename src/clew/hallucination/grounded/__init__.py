# ruff: noqa: F401 - the imports for type checkers
"""Grounded answers: what the sources of an answer do not support, whichever model wrote it."""

from typing import TYPE_CHECKING

from clew.base.lazy import lazy_names
from clew.hallucination.grounded.folder import BUILT_IN_READER, READER_JSON, is_reader

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.grounded.passages import GroundedAnswer, SourcePassage, find_problem
    from clew.hallucination.grounded.reader import (
        GroundedReading,
        Reader,
        UnitRisk,
        UnsupportedSpan,
        describe_reader,
        load_reader,
    )

_HOMES = {
    **dict.fromkeys(("GroundedAnswer", "SourcePassage", "find_problem"), "passages"),
    **dict.fromkeys(
        (
            *("GroundedReading", "Reader", "UnitRisk", "UnsupportedSpan"),
            *("describe_reader", "load_reader"),
        ),
        "reader",
    ),
}
__all__ = ["BUILT_IN_READER", "READER_JSON", "is_reader", *sorted(_HOMES)]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
