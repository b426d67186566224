"""Commands for hints."""

from pathlib import Path

from clew.base.texts import for_shell
from clew.patterns.library.folders import LIBRARY


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """The shell command `clew patterns COMMAND WORDS`, with --library if it is not the default."""
    where = [] if library == LIBRARY else ["--library", library]
    return for_shell(["clew", "patterns", command, *words, *where])
