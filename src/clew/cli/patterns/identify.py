"""clew patterns identify"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import counted, for_terminal, whole_percent
from clew.cli.commands import Call, Command
from clew.cli.errors import call_text, with_flags
from clew.cli.options import Spelling
from clew.cli.patterns.review import run_review
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.cli.serve import check_web
from clew.patterns.workflow import identify

if TYPE_CHECKING:
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.identification.results import Identified, IdentifyConfig
    from clew.patterns.library.choose import Chosen

COMMAND = Command(
    function=identify,
    name="patterns identify",
    example="clew patterns identify holiday_photos --name animals --copy-to sorted",
    groups={
        "Model": ("model", "name", "library", "device"),
        "Predictions": ("top_k", "threshold", "unknown"),
        "Output": ("out", "copy_to", "thumbnails"),
        "Review": ("review", "web"),
    },
    spelling=Spelling(metavars={"photos": "FOLDER"}),
    has_json=True,
    has_threads=True,
)
_FEW_PHOTOS = 20


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.patterns.library.choose import choose_model
    from clew.patterns.review import ReviewConfig

    wished = {name: call.settings[name] for name in ("review", "web")}
    check_web(wished["web"])
    # the review runs below, at the terminal
    settings = {**call.settings, "review": False, "web": False}
    with Renderer(call.progress) as reporter:
        result = identify(**settings, reporter=reporter)
    if call.as_json:
        call.print_json(describe_identification(result))
        return
    print_result(call.console, call.progress, result)
    if not result.counts["doubtful"]:
        return
    names = ("model", "name", "library")
    chosen = choose_model(**{name: call.settings[name] for name in names})
    if any(wished.values()):
        call.console.print()
        config = ReviewConfig(identified=result.folder)
        run_review(call.console, chosen, config, web=wished["web"])
    else:
        say_how_to_review(call.progress, chosen, call.settings["out"])


def say_how_to_review(console: Console, chosen: "Chosen", out: Path | None = None) -> None:
    """Print the command that reviews the doubtful photos. `out` is the folder of the results, if it
    is not the default."""
    from clew.patterns.review.session import ReviewConfig, call_to_review

    review = call_to_review(chosen, ReviewConfig(identified=out))
    print_line(console, f"review doubtful photos with: {call_text(review)}")


def identify_and_print(
    console: Console, progress: Console, config: "IdentifyConfig"
) -> "IdentifyResult":
    """Identify photos and print the result, as a step of `clew patterns flow`."""
    from clew.patterns.identification.identify import identify_photos

    with Renderer(progress) as reporter:
        result = identify_photos(config, reporter)
    print_result(console, progress, result)
    return result


def describe_identification(result: "IdentifyResult") -> dict[str, object]:
    return {
        "folder": str(result.folder),
        "counts": result.counts,
        "classes": dict(result.class_counts),
        "photos": result.table.to_pylist(),
        "notes": [with_flags(note) for note in result.notes],
    }


def print_result(console: Console, progress: Console, result: "IdentifyResult") -> None:
    from clew.patterns.identification.page import describe_counts
    from clew.patterns.identification.results import read_identified

    console.print(describe_counts(result.counts), style="bold")
    if result.counts["photos"] <= _FEW_PHOTOS:
        _print_photos(console, "photo", read_identified(result.list_file).photos)
    else:
        _print_classes(console, result)
        _print_some(console, "doubtful", result.doubtful, result.counts["doubtful"])
        _print_some(console, "unreadable", result.faulty, result.counts["faulty"])
    for note in result.notes:
        print_line(progress, f"note: {with_flags(note)}")
    _print_places(progress, result)


def _print_classes(console: Console, result: "IdentifyResult") -> None:
    table = make_table("class", "photos")
    for label, count in result.class_counts:
        table.add_row(for_terminal(label), f"{count:,}")
    console.print(table)
    console.print()


def _print_some(console: Console, title: str, photos: "tuple[Identified, ...]", count: int) -> None:
    if not photos:
        return
    _print_photos(console, title, photos)
    if count > len(photos):
        console.print(f"... and {count - len(photos):,} more (see identified.csv)")
    console.print()


def _print_photos(console: Console, title: str, photos: "tuple[Identified, ...]") -> None:
    table = make_table()
    for heading in (title, "", ""):
        table.add_column(heading, overflow="fold")
    for photo in photos:
        first, others = _tell(photo)
        if photo.unknown:
            first += " (unknown)"
        elif photo.doubtful and title != "doubtful":
            first += " (doubtful)"
        table.add_row(*(for_terminal(text) for text in (photo.name, first, others)))
    console.print(table)


def _tell(photo: "Identified") -> tuple[str, str]:
    """The photo's class and its alternatives, or why it cannot be read."""
    if photo.fault is not None:
        return "unreadable", photo.fault.reason
    told = [f"{label} {whole_percent(chance)}" for label, chance in photo.best]
    return told[0], ", ".join(told[1:])


def _print_places(console: Console, result: "IdentifyResult") -> None:
    print_line(console, f"page: {result.page}")
    if result.sheets:
        more = f" and {len(result.sheets) - 1} more beside it" if len(result.sheets) > 1 else ""
        print_line(console, f"contact sheet: {result.sheets[0]}{more}")
    print_line(console, f"lists: {result.list_file} and {result.list_file.with_suffix('.csv')}")
    if (copies := result.copies) is not None:
        there = f", {copies.already_there:,} already there" if copies.already_there else ""
        copied = f"{counted(copies.copied, 'photo')} copied to {copies.folder}{there}"
        unknown = result.counts["unknown"]
        unsure = {
            "doubtful": (copies.doubtful, result.counts["doubtful"] - unknown),
            "unknown": (copies.unknown, unknown),
        }
        where = [
            f"; {name} photos are in {folder}" for name, (folder, count) in unsure.items() if count
        ]
        print_line(console, f"{copied}{''.join(where)}")
