"""clew patterns info"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from clew.base.texts import bytes_text, counted, for_terminal, tenth_percent
from clew.cli.commands import Call, Command
from clew.cli.patterns.hints import command_text
from clew.cli.printing import make_table, print_line
from clew.patterns.workflow import describe_set

if TYPE_CHECKING:
    from clew.patterns.library.pattern_set import RunSummary, SetSummary

COMMAND = Command(
    function=describe_set, name="patterns info", example="clew patterns info animals", has_json=True
)
_LAST_RUNS = 5


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    summary = describe_set(**call.settings)
    if call.as_json:
        call.print_json(asdict(summary))
        return
    _print_classes(call.console, summary)
    _print_runs(call.console, summary)
    _print_places(call.console, summary)
    print_line(call.progress, next_step(summary, Path(call.settings["library"])))


def next_step(summary: "SetSummary", library: Path) -> str:
    """The line that ends most commands: what to do with the set now."""
    more = command_text("import", summary.name, "DIR", library=library)
    train = command_text("train", summary.name, library=library)
    small = summary.small_classes()
    if not summary.photos:
        return f"next, add photos: {more}"
    if len(summary.classes) < 2:
        return f"next, add photos of a second class: {more}"
    if small:
        names = ", ".join(f'"{label}"' for label in small[:10])
        return f"next, add photos of {names} (at least 3 per class): {more}"
    if not summary.runs:
        return f"next, train the classifier: {train}"
    if not summary.runs[-1].is_finished:
        return f"next, resume training: run the same command again, or {train}"
    if summary.change:
        return f"next, train again from the last weights: {train}"
    identify = command_text("identify", "FOLDER", "--name", summary.name, library=library)
    return f"next, identify new photos: {identify}"


def accuracy_text(run: "RunSummary | None") -> str:
    """The test accuracy with its confidence interval, as far as it is known."""
    if run is None or run.test_accuracy is None:
        return "-"
    if run.test_accuracy_ci is None:
        return tenth_percent(run.test_accuracy)
    shown, low, high = map(tenth_percent, (run.test_accuracy, *run.test_accuracy_ci))
    return f"{shown} ({low} to {high})"


def _print_classes(console: Console, summary: "SetSummary") -> None:
    what = f"{counted(len(summary.classes), 'class', 'classes')}, "
    what += f"{counted(summary.photos, 'photo')} ({bytes_text(summary.bytes)})"
    name = for_terminal(summary.name)
    title = Text.assemble((name, "bold"), f": {what}, created {for_terminal(summary.created[:10])}")
    console.print(title)
    table = make_table("class", "photos")
    for label, photos in summary.classes.items():
        table.add_row(for_terminal(label), f"{photos:,}")
    if table.rows:
        console.print(table)
    console.print()


def _print_runs(console: Console, summary: "SetSummary") -> None:
    table = make_table("run", "ended", "photos", "test accuracy (95% CI)")
    for run in summary.runs[-_LAST_RUNS:]:
        photos = "-" if run.photos is None else f"{run.photos:,}"
        ended = run.finished[:16].replace("T", " ") if run.finished else "not finished"
        table.add_row(run.folder.name, ended, photos, accuracy_text(run))
    if table.rows:
        console.print(table)
        if len(summary.runs) > _LAST_RUNS:
            console.print(f"(and {len(summary.runs) - _LAST_RUNS:,} earlier)")
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
        removed = f", {gone:,} removed" if gone else ""
        print_line(console, f"since the last training run: {counted(new, 'new photo')}{removed}")
