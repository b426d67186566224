"""Commands for hints, and checks for optional packages before a command starts."""

from pathlib import Path

from clew.foreign_text import for_shell
from clew.patterns.library.folders import LIBRARY


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """The shell command `clew patterns COMMAND WORDS`, with --library if it is not the default."""
    where = [] if library == LIBRARY else ["--library", library]
    return for_shell(["clew", "patterns", command, *words, *where])


def check_web(wanted: bool) -> None:
    """Raise InputError, before any work is done, if a page is requested and the packages of the
    extra "web" are missing."""
    if wanted:
        from clew.pages.server import require_web

        require_web()
