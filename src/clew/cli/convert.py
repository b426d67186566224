"""clew convert"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: `clew convert old_traces --out traces_data`")(convert)


def convert(
    folder: Annotated[Path, typer.Argument(help="A folder of .pkl, .pkl.gz or .pt files.")],
    out: Annotated[Path, typer.Option(help="The store to write.")],
) -> None:
    """Turn what the older tools wrote into a store. Files that hold anything but data are refused."""
    from clew.legacy import convert_folder

    console = Console(highlight=False, soft_wrap=True)
    result = convert_folder(folder, out, on_file=lambda name: console.print(f"reading {name}"))
    console.print(str(result), markup=False)
