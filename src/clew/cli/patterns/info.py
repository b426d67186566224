"""clew patterns info"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli.patterns.library_flags import LIBRARY, Library, command_text
from clew.cli.printing import make_table, plain_text, print_line
from clew.wording import bytes_text, counted, tenth_percent

if TYPE_CHECKING:
    from clew.patterns.library.summary import RunSummary, SetSummary

_EPILOG = "Example: `clew patterns info animals`"
_LAST_RUNS = 5


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(info)


def info(
    name: Annotated[
        str | None, typer.Argument(help="The set.  [default: the only one]", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    library: Library = LIBRARY,
) -> None:
    """Show a set: classes, trainings with their accuracy, where things lie, what is next."""
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.library.summary import summarize_set

    pattern_set = PatternSet.open(name, library)
    summary = summarize_set(pattern_set)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=1, default=str))
        return
    console = Console(highlight=False, soft_wrap=True)
    _print_classes(console, summary)
    _print_runs(console, summary)
    _print_places(console, summary)
    print_line(console, next_step(summary, library))


def next_step(summary: "SetSummary", library: Path) -> str:
    """The sentence that ends most commands: what to do with the set now."""
    more = command_text("import", summary.name, "DIR", library=library)
    train = command_text("train", summary.name, library=library)
    small = summary.small_classes()
    if not summary.photos:
        return f"next, photos: {more}"
    if len(summary.classes) < 2:
        return f"next, photos of a second class, to tell them apart: {more}"
    if small:
        names = ", ".join(f'"{label}"' for label in small[:10])
        return f"next, more photos of {names} (at least 3 of each class): {more}"
    if not summary.runs:
        return f"next: {train}"
    if not summary.runs[-1].is_finished:
        return f"next, go on with the training: give its command again; without flags it is {train}"
    if summary.change:
        return f"next, train again from the last weights: {train}"
    identify = command_text("identify", "FOLDER", "--name", summary.name, library=library)
    return f"next, name new photos: {identify}"


def accuracy_text(run: "RunSummary | None") -> str:
    """The test accuracy with its interval, as far as it is known."""
    if run is None or run.test_accuracy is None:
        return "-"
    if run.test_accuracy_ci is None:
        return tenth_percent(run.test_accuracy)
    shown, low, high = map(tenth_percent, (run.test_accuracy, *run.test_accuracy_ci))
    return f"{shown} ({low} to {high})"


def _print_classes(console: Console, summary: "SetSummary") -> None:
    what = f"{counted(len(summary.classes), 'class', 'classes')}, "
    what += f"{counted(summary.photos, 'photo')} ({bytes_text(summary.bytes)})"
    name = escape(plain_text(summary.name))
    console.print(f"[bold]{name}[/bold]: {what}, made {summary.created[:10]}")
    table = make_table("class", "photos")
    for label, photos in summary.classes.items():
        table.add_row(escape(plain_text(label)), f"{photos:,}")
    if table.rows:
        console.print(table)
    console.print()


def _print_runs(console: Console, summary: "SetSummary") -> None:
    table = make_table("training", "ended", "photos", "test accuracy (95% interval)")
    for run in summary.runs[-_LAST_RUNS:]:
        photos = "-" if run.photos is None else f"{run.photos:,}"
        ended = run.finished[:16].replace("T", " ") if run.finished else "not finished"
        table.add_row(run.folder.name, ended, photos, accuracy_text(run))
    if table.rows:
        console.print(table)
        if len(summary.runs) > _LAST_RUNS:
            console.print(f"(and {len(summary.runs) - _LAST_RUNS:,} before)")
        console.print()


def _print_places(console: Console, summary: "SetSummary") -> None:
    places = {"photos": summary.folder / "photos", "imports": summary.folder / "import.csv"}
    if summary.model is not None:
        places["model"] = summary.model.folder
        places["report"] = summary.model.folder / "report.html"
    places["identified"] = summary.folder / "identified"
    for what, path in places.items():
        if path.exists():
            print_line(console, f"{what + ':':<12}{path}")
    if summary.change:
        new, gone = summary.change.new, summary.change.gone
        taken = f", {gone:,} that are gone" if gone else ""
        print_line(console, f"since the last training: {counted(new, 'new photo')}{taken}")
