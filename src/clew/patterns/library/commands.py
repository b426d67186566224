"""Commands that can be pasted: spaces are quoted, and the library is named where it is another."""

import shlex
from pathlib import Path

LIBRARY = Path("patterns")  # where sets lie when nothing else is said


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """`clew patterns COMMAND WORDS`, in the same library."""
    where = [] if library == LIBRARY else ["--library", str(library)]
    return shlex.join(["clew", "patterns", command, *map(str, words), *where])
