"""Named sets of patterns: their photos, their models, and which one a command means."""

from clew.patterns.library.choose import Chosen, choose_model
from clew.patterns.library.commands import LIBRARY, command_text
from clew.patterns.library.importing import ImportResult, import_photos
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.library.summary import SetSummary, summarize_set

__all__ = [
    "LIBRARY",
    "Chosen",
    "ImportResult",
    "PatternSet",
    "SetSummary",
    "choose_model",
    "command_text",
    "import_photos",
    "summarize_set",
]
