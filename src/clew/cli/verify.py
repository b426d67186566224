"""clew verify"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clew.cli.errors import with_flags
from clew.cli.printing import print_line
from clew.cli.progress import show_line

if TYPE_CHECKING:
    from clew.storage.verify import OnShard


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: `clew verify traces_data --repair`")(verify)


def verify(
    store: Annotated[Path, typer.Argument(help="The folder of a store.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Keep what is intact, forget what is damaged.")
    ] = False,
) -> None:
    """Check a store: hashes, row counts, gaps, half-written parts. Exit code 1 if it is not whole.

    After --repair, give the command that made it again: it makes the lost rows anew.
    """
    from clew.storage.verify import find_stores

    console = Console(highlight=False, soft_wrap=True)
    codes = [_verify_one(one, repair, console) for one in find_stores(store)]
    if any(codes):
        raise typer.Exit(1)


def _verify_one(store: Path, repair: bool, console: Console) -> int:
    """Check one store; the exit code that it calls for."""
    from clew.storage import ensure_manifest, read_manifest, repair_store, verify_store
    from clew.storage.verify import way_on

    if repair and (rebuilt := ensure_manifest(store)):
        print_line(console, rebuilt)
    with _show_shards(console) as on_shard:
        problems = verify_store(store, on_shard)
    for problem in problems:
        print_line(console, with_flags(problem.message))
    if repair and problems:
        for line in repair_store(store, problems):
            print_line(console, f"repaired: {line}")
        with _show_shards(console) as on_shard:
            problems = verify_store(store, on_shard)
        harmless = all(problem.is_unfinished for problem in problems)
        if problems and harmless:
            print_line(console, f"{way_on(read_manifest(store))} to make what is missing")
        if problems:
            return 0 if harmless else 1
    if problems:
        if any(not problem.is_unfinished for problem in problems):
            print_line(console, f"to put it right: clew verify {store} --repair")
        return 1
    print_line(console, f"{store} is whole: every shard has the bytes it was written with")
    return 0


@contextmanager
def _show_shards(console: Console) -> Iterator["OnShard"]:
    """Which shard is being read."""
    with show_line(console, "checking") as show:
        yield lambda file, number, total: show(f"checking {number:,}/{total:,} {file}", False)
