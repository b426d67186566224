"""clew patterns list"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli.formats import plain_text
from clew.cli.patterns.info import accuracy_text
from clew.cli.patterns.library_flags import Library, command_text

_EPILOG = "Example: `clew patterns list`"


def register(app: typer.Typer) -> None:
    app.command(name="list", epilog=_EPILOG)(list_)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    library: Library = Path("patterns"),
) -> None:
    """List the sets of a library: classes, photos, how well their models did on test photos."""
    from clew.patterns.library import PatternSet, summarize_set

    console = Console(highlight=False, soft_wrap=True)
    summaries = [summarize_set(one) for one in PatternSet.all(library)]
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in summaries], indent=1, default=str))
        return
    if not summaries:
        create = command_text("create", "NAME", library=library)
        console.print(plain_text(f"no sets in {library} yet. Make one: {create}"), markup=False)
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("set", overflow="fold")
    for name in ("classes", "photos", "test accuracy (95% interval)", "trained"):
        table.add_column(name, justify="right")
    for one in summaries:
        trained = one.model.finished[:10] if one.model and one.model.finished else "-"
        counts = (f"{len(one.classes):,}", f"{one.photos:,}")
        table.add_row(escape(plain_text(one.name)), *counts, accuracy_text(one.model), trained)
    console.print(table)
