"""Grounded answers: what the sources of an answer do not support, whichever model wrote it."""

from clew.hallucination.grounded.passages import SourcePassage
from clew.hallucination.grounded.reader import (
    BUILT_IN_READER,
    GroundedAnswer,
    GroundedReading,
    Reader,
    UnitRisk,
    UnsupportedSpan,
    load_reader,
)

__all__ = [
    "BUILT_IN_READER",
    "GroundedAnswer",
    "Reader",
    "GroundedReading",
    "SourcePassage",
    "UnitRisk",
    "UnsupportedSpan",
    "load_reader",
]
