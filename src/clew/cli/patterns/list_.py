"""clew patterns list"""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli.errors import error_text
from clew.cli.patterns.info import accuracy_text
from clew.cli.patterns.library_flags import LIBRARY, Library, command_text
from clew.cli.printing import make_table, plain_text, print_line

_EPILOG = "Example: `clew patterns list`"


def register(app: typer.Typer) -> None:
    app.command(name="list", epilog=_EPILOG)(list_)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    library: Library = LIBRARY,
) -> None:
    """List the sets of a library: classes, photos, how well their models did on test photos."""
    from clew.patterns.library.summary import summarize_library

    console = Console(highlight=False, soft_wrap=True)
    summaries, damaged = summarize_library(library)
    for error in damaged:
        print_line(Console(stderr=True, highlight=False), f"clew: {error_text(error)}")
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in summaries], indent=1, default=str))
        return
    if not summaries and not damaged:
        create = command_text("create", "NAME", library=library)
        print_line(console, f"no sets in {library} yet. Make one: {create}")
        return
    table = make_table("set", "classes", "photos", "test accuracy (95% interval)", "trained")
    for one in summaries:
        trained = one.model.finished[:10] if one.model and one.model.finished else "-"
        counts = (f"{len(one.classes):,}", f"{one.photos:,}")
        table.add_row(escape(plain_text(one.name)), *counts, accuracy_text(one.model), trained)
    if summaries:
        console.print(table)
