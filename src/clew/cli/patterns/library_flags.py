"""Flags of several commands: which set or model is meant, and whether a review follows."""

from pathlib import Path
from typing import Annotated

import typer

from clew.patterns.library.folders import LIBRARY as LIBRARY

Library = Annotated[Path, typer.Option("--library", help="The folder where your sets lie.")]
Model = Annotated[
    Path | None,
    typer.Option("--model", help="A model: the --output-dir of `clew patterns train`."),
]
Review = Annotated[bool, typer.Option("--review", help="Then ask about each doubtful photo.")]
Web = Annotated[
    bool, typer.Option("--web", help="Ask on a page of your browser, not at the terminal.")
]
SetName = Annotated[
    str | None,
    typer.Option("--name", help="Or a set, whose newest model is taken.  [default: the only set]"),
]
