"""Commands that hints name, and what has to be there before a command begins."""

import shlex
from pathlib import Path

from clew.patterns.library.folders import LIBRARY


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """`clew patterns COMMAND WORDS`, in the same library; it can be pasted."""
    where = [] if library == LIBRARY else ["--library", str(library)]
    return shlex.join(["clew", "patterns", command, *map(str, words), *where])


def check_web(wanted: bool) -> None:
    """A page requires an extra: missing packages are reported before any work is done."""
    if wanted:
        from clew.pages.server import require_web

        require_web()
