"""Which set is meant: the flag for it, and commands to paste that bear it on."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

Library = Annotated[Path, typer.Option("--library", help="The folder where your sets lie.")]


def command_text(command: str, *words: object, library: Path) -> str:
    """A command that can be pasted: `clew patterns COMMAND WORDS`, in the same library."""
    from clew.patterns.library import LIBRARY

    where = [] if library == LIBRARY else ["--library", str(library)]
    return shlex.join(["clew", "patterns", command, *map(str, words), *where])
