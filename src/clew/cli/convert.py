"""clew convert"""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clew.cli.errors import with_flags
from clew.cli.printing import print_line
from clew.wording import counted

_EPILOG = "Example: `clew convert old_traces --out traces_data`"


class _ConvertKeep(StrEnum):
    full = "full"
    compact = "compact"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(convert)


def convert(
    folder: Annotated[Path, typer.Argument(help="A folder of .pkl, .pkl.gz or .pt files.")],
    out: Annotated[Path, typer.Option(help="The store to write.")],
    keep: Annotated[
        _ConvertKeep,
        typer.Option(help="full: everything that is there; compact: what detectors need."),
    ] = _ConvertKeep.full,
) -> None:
    """Turn what the older tools wrote into a store.

    Files are read without running anything in them; one that holds more than plain data is
    refused. A run that was broken off goes on where it was: give the same command.
    """
    from clew.hallucination.legacy import convert_folder

    console = Console(highlight=False, soft_wrap=True)
    say = partial(print_line, console)

    def show_file(path: Path, number: int, total: int) -> None:
        say(f"{number}/{total}  {path.name}", style="dim")

    result = convert_folder(folder, out, keep=keep.value, on_file=show_file)
    for skip in result.skipped:
        say(f"left out: {with_flags(str(skip))}")
    stores = ", ".join(str(store) for store in result.stores) or "no store"
    rows, files = counted(result.traces, "row"), counted(result.files, "file")
    already = f" ({result.already:,} of them there already)" if result.already else ""
    say(f"{rows} of {files}{already} in {stores}")
    if result.stores:
        say(f"look at them with: clew inspect {result.stores[0]}")
    if not result.complete:
        raise typer.Exit(1)
