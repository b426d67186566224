"""clew verify"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: `clew verify traces_data --repair`")(verify)


def verify(
    store: Annotated[Path, typer.Argument(help="The folder of a store.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep what is intact, forget what is damaged.")
    ] = False,
) -> None:
    """Check a store: hashes, row counts, gaps, half-written parts. Exit code 1 if it is not whole.

    After --repair, run the extraction again: it makes the lost traces anew and no others.
    """
    from clew.shards import ensure_manifest, repair_store, verify_store

    console = Console(highlight=False, soft_wrap=True)
    if repair and (rebuilt := ensure_manifest(store)):
        console.print(rebuilt, markup=False)
    problems = verify_store(store)
    for problem in problems:
        console.print(problem.message, markup=False)
    if not problems:
        console.print(
            f"{store} is whole: every shard has the bytes it was written with", markup=False
        )
        return
    if repair:
        for line in repair_store(store, problems):
            console.print(f"repaired: {line}", markup=False)
        left = verify_store(store)
        harmless = all(problem.kind in ("part", "gap") for problem in left)
        if harmless:
            console.print("run the same extraction again to make what is missing")
        raise typer.Exit(0 if harmless else 1)
    if any(problem.kind not in ("part", "gap") for problem in problems):
        console.print(f"to put it right: clew verify {store} --repair", markup=False)
    raise typer.Exit(1)
