# ruff: noqa: F401 - the imports for type checkers
"""Grounded answers: what the sources of an answer do not support, whichever model wrote it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.lazy import lazy_names

if TYPE_CHECKING:  # the names of `_HOMES`
    from clew.hallucination.grounded.passages import SourcePassage
    from clew.hallucination.grounded.reader import (
        GroundedAnswer,
        GroundedReading,
        Reader,
        UnitRisk,
        UnsupportedSpan,
        load_reader,
    )

BUILT_IN_READER = "grounded"
READER_JSON, ADAPTER = "reader.json", "adapter.safetensors"
_HOMES = {
    "SourcePassage": "passages",
    **dict.fromkeys(
        (
            *("GroundedAnswer", "GroundedReading", "Reader", "UnitRisk", "UnsupportedSpan"),
            "load_reader",
        ),
        "reader",
    ),
}
__all__ = ["BUILT_IN_READER", "reader_folder", "is_reader", *sorted(_HOMES)]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)


def reader_folder(name: str | Path) -> Path:
    """The folder of a reader: the built-in one comes with the package."""
    built_in = Path(__file__).parent / "built_in"
    return built_in if str(name) == BUILT_IN_READER else Path(name).expanduser()


def is_reader(name: Any) -> bool:
    """Whether this names a reader rather than another detector."""
    return isinstance(name, str | Path) and (reader_folder(name) / READER_JSON).exists()
