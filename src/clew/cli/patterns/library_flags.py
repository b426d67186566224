"""Which set or model is meant, and whether a review follows: flags of several commands, and the
commands that hints name."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from clew.patterns.library.folders import LIBRARY as LIBRARY


def check_web(wanted: bool) -> bool:
    """A page needs an extra: missing packages are told before any work is done."""
    if wanted:
        from clew.pages.server import require_web

        require_web()
    return wanted


Library = Annotated[Path, typer.Option("--library", help="The folder where your sets lie.")]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="A model: the --output-dir of `clew patterns train`."),
]
Review = Annotated[bool, typer.Option("--review", help="Then ask about each doubtful photo.")]
Web = Annotated[
    bool,
    typer.Option(
        "--web", callback=check_web, help="Ask on a page of your browser, not at the terminal."
    ),
]
SetName = Annotated[
    str | None,
    typer.Option("--name", help="Or a set, whose newest model is taken.  [default: the only set]"),
]


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """`clew patterns COMMAND WORDS`, in the same library; it can be pasted."""
    where = [] if library == LIBRARY else ["--library", str(library)]
    return shlex.join(["clew", "patterns", command, *map(str, words), *where])
