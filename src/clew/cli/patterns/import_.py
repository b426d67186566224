"""clew patterns import"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import counted, for_terminal
from clew.cli.commands import Call, Command
from clew.cli.options import Spelling
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.cli.signals import how_to_resume, stop_on_signal
from clew.patterns.workflow import import_photos

if TYPE_CHECKING:
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet

COMMAND = Command(
    function=import_photos,
    name="patterns import",
    example="clew patterns import animals my_photos",
    spelling=Spelling(metavars={"sources": "DIR..."}),
    has_json=True,
    is_resumable=True,
)
_MOST_NAMED = 10
_RESULTS = ("added", "already there", "excluded")


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.patterns.library.pattern_set import PatternSet

    pattern_set = PatternSet.open(call.settings["name"], Path(call.settings["library"]))
    options = {name: call.settings[name] for name in ("label", "move")}
    result = import_and_print(
        call.progress,
        pattern_set,
        call.settings["sources"],
        results=None if call.as_json else call.console,
        **options,
    )
    if call.as_json:
        call.print_json(_describe(result))
        return
    say_next(call.progress, pattern_set)


def import_and_print(
    console: Console,
    pattern_set: "PatternSet",
    sources: Sequence[Path],
    *,
    results: Console | None,
    label: str | None = None,
    move: bool = False,
) -> "ImportResult":
    """Import, and print the result; also a step of `clew patterns flow`."""
    with (
        stop_on_signal(console, "finishing the current photo", resume=how_to_resume()) as stop,
        Renderer(console) as reporter,
    ):
        result = import_photos(
            pattern_set, sources, label=label, move=move, reporter=reporter, should_stop=stop
        )
    if results is not None:
        _print_result(results, result)
    if not result.is_finished:
        print_line(console, f"stopped.{how_to_resume()}")
        raise stop.exit()
    return result


def say_next(console: Console, pattern_set: "PatternSet") -> None:
    from clew.cli.patterns.info import next_step
    from clew.patterns.library.pattern_set import summarize_set

    library = pattern_set.library
    print_line(console, next_step(summarize_set(pattern_set), library))


def _describe(result: "ImportResult") -> dict[str, object]:
    counts = {name: dict(result.count(name)) for name in _RESULTS}
    return {**counts, "other_files": result.other_files, "listing": str(result.listing)}


def _print_result(console: Console, result: "ImportResult") -> None:
    from clew.patterns.photos.photo import natural_order

    counts = [result.count(name) for name in _RESULTS]
    table = make_table("class", *_RESULTS)
    for label in sorted(set().union(*counts), key=natural_order):
        cell = for_terminal(label or "(no class)")
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
        print_line(console, f"... {len(excluded):,} in total: {counts}")
    if result.other_files:
        files = counted(result.other_files, "file")
        print_line(console, f"ignored {files} without an image extension (.jpg, .png, ...)")
    print_line(console, f"result for every file: {result.listing}")
