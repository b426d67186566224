"""clew patterns import"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli.long_runs import how_to_resume, stop_on_signal
from clew.cli.patterns.library_flags import LIBRARY, Library
from clew.cli.printing import make_table, plain_text, print_line
from clew.cli.renderer import Renderer

if TYPE_CHECKING:
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet

_EPILOG = "Example: `clew patterns import animals my_photos`"
_MOST_NAMED = 10
_RESULTS = ("added", "already there", "excluded")


def register(app: typer.Typer) -> None:
    app.command(name="import", epilog=_EPILOG)(import_)


def import_(
    name: Annotated[str, typer.Argument(help="The set.")],
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders with a folder a class, with or without train, val and test folders.",
        ),
    ],
    label: Annotated[
        str | None, typer.Option(help="The class of all these photos, wherever they lie.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move the photos instead of copying them.")
    ] = False,
    library: Library = LIBRARY,
) -> None:
    """Add photos to a set, all classes at once: every good picture once, the rest listed.

    Cut, empty, tiny and doubled files are left out and named in import.csv. An import that was
    stopped or killed goes on: give the same command. Nothing is ever overwritten.
    """
    from clew.patterns.library.pattern_set import PatternSet

    console = Console(highlight=False, soft_wrap=True)
    pattern_set = PatternSet.open(name, library)
    import_and_print(console, pattern_set, sources, label=label, move=move)
    say_next(console, pattern_set)


def import_and_print(
    console: Console,
    pattern_set: "PatternSet",
    sources: Sequence[Path],
    *,
    label: str | None = None,
    move: bool = False,
) -> None:
    """Import, and show what became of the photos; `clew patterns flow` has it as a step."""
    from clew.patterns.library.importing import import_photos

    with (
        stop_on_signal(console, "finishing the photo in hand") as stop,
        Renderer(console) as reporter,
    ):
        result = import_photos(
            pattern_set, sources, label=label, move=move, reporter=reporter, should_stop=stop
        )
    _print_result(console, result)
    if not result.is_finished:
        print_line(console, f"stopped.{how_to_resume()}")
        raise stop.exit()


def say_next(console: Console, pattern_set: "PatternSet") -> None:
    from clew.cli.patterns.info import next_step
    from clew.patterns.library.summary import summarize_set

    library = pattern_set.library
    print_line(console, next_step(summarize_set(pattern_set), library))


def _print_result(console: Console, result: "ImportResult") -> None:
    from clew.patterns.photos.photo import natural_order

    counts = [result.count(name) for name in _RESULTS]
    table = make_table("class", *_RESULTS)
    for label in sorted(set().union(*counts), key=natural_order):
        cell = escape(plain_text(label or "(no class)"))
        table.add_row(cell, *(f"{count[label]:,}" for count in counts))
    if len(table.rows) > 1:
        table.add_section()
        table.add_row("all", *(f"{count.total():,}" for count in counts))
    console.print(table)
    _print_excluded(console, result)


def _print_excluded(console: Console, result: "ImportResult") -> None:
    excluded = result.excluded
    for source in excluded[:_MOST_NAMED]:
        print_line(console, f"excluded: {source.source}: {source.kind}, {source.reason}")
    if len(excluded) > _MOST_NAMED:
        kinds = Counter(source.kind for source in excluded).most_common()
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        print_line(console, f"... {len(excluded):,} in all: {counts}")
    if result.other_files:
        have = "file has" if result.other_files == 1 else "files have"
        print_line(
            console,
            f"{result.other_files:,} other {have} no photo's ending (.jpg, .png, ...): passed over",
        )
    print_line(console, f"what became of every file: {result.listing}")
