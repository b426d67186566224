"""clew patterns identify"""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clew.cli import plan_flags
from clew.cli.formats import count_text, duration_text, plain_text
from clew.cli.patterns.library_flags import Library
from clew.cli.progress import RunReporter

if TYPE_CHECKING:
    from clew.patterns.identify import Identified, IdentifyConfig, IdentifyResult
    from clew.patterns.library import Chosen

_EPILOG = "Example: `clew patterns identify holiday_photos --name animals --copy-to sorted`"
_FEW_PHOTOS = 20


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(identify)


def identify(
    folder: Annotated[Path, typer.Argument(help="A folder of photos (or one photo).")],
    model: Annotated[
        Path | None, typer.Option(help="A model: the --output-dir of `clew patterns train`.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Or a set, whose newest model is taken.  [default: the only set]"),
    ] = None,
    top_k: Annotated[int, typer.Option(help="So many classes are told of a photo.")] = 3,
    threshold: Annotated[
        float,
        typer.Option(help="Photos whose likeliest class is less probable than this are doubtful."),
    ] = 0.6,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="For the results.  [default: identified/FOLDER beside the model]"),
    ] = None,
    copy_to: Annotated[
        Path | None,
        typer.Option(help="Copy the photos there, a folder a class; nothing is overwritten."),
    ] = None,
    thumbnails: Annotated[
        int, typer.Option(help="So many photos are shown on the page and the contact sheets.")
    ] = 500,
    review: Annotated[
        bool, typer.Option("--review", help="Then ask about each doubtful photo.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Ask on a page of your browser, not at the terminal.")
    ] = False,
    library: Library = Path("patterns"),
    device: plan_flags.Device = None,
) -> None:
    """Say what photos show: lists, a page and contact sheets, doubtful ones first."""
    from clew.patterns.identify import IdentifyConfig, default_folder
    from clew.patterns.library import choose_model
    from clew.patterns.trained.model import usual_device

    chosen = choose_model(model=model, name=name, library=library)
    config = IdentifyConfig(
        photos=folder,
        model=chosen.model,
        output_dir=output_dir or default_folder(home_of(chosen), folder),
        top_k=top_k,
        threshold=threshold,
        copy_to=copy_to,
        thumbnails=thumbnails,
        device=usual_device(device),
    )
    console = Console(highlight=False)
    result = identify_and_print(console, config)
    if not result.counts["doubtful"]:
        return
    if review or web:
        _review(console, chosen, result, web=web)
    else:
        _say(console, f"look at the doubtful ones with: {_review_command(chosen, output_dir)}")


def _review(console: Console, chosen: "Chosen", result: "IdentifyResult", *, web: bool) -> None:
    from clew.cli.patterns.review import run_review
    from clew.patterns.review import ReviewConfig

    console.print()
    run_review(console, chosen, ReviewConfig(identified=result.folder), web=web)


def _review_command(chosen: "Chosen", output_dir: Path | None) -> str:
    from clew.patterns.library import LIBRARY

    words = ["--model", str(chosen.model)]
    if chosen.pattern_set is not None:
        words = [chosen.pattern_set.name]
        library = chosen.pattern_set.folder.parent
        words += [] if library == LIBRARY else ["--library", str(library)]
    words += [] if output_dir is None else ["--identified", str(output_dir)]
    return shlex.join(["clew", "patterns", "review", *words])


def home_of(chosen: "Chosen") -> Path:
    """Where results lie by default: the set's folder, or the model's."""
    return chosen.pattern_set.folder if chosen.pattern_set is not None else chosen.model


def identify_and_print(console: Console, config: "IdentifyConfig") -> "IdentifyResult":
    """The command itself; `clew patterns flow` has it as one of its steps."""
    from clew.patterns.identify import identify_photos

    result = identify_photos(config, _Reporter(console))
    print_result(console, result)
    return result


def print_result(console: Console, result: "IdentifyResult") -> None:
    from clew.patterns.identify import read_identified
    from clew.patterns.identify.page import tell_counts

    console.print(tell_counts(result.counts), style="bold")
    if result.counts["photos"] <= _FEW_PHOTOS:
        _print_photos(console, "photo", read_identified(result.list_file).photos)
    else:
        _print_classes(console, result)
        _print_some(console, "doubtful", result.unsure, result.counts["doubtful"])
        _print_some(console, "cannot be read", result.faulty, result.counts["faulty"])
    for note in result.notes:
        _say(console, f"note: {note}")
    _print_places(console, result)


def _print_classes(console: Console, result: "IdentifyResult") -> None:
    table = _table("class", "photos")
    for label, count in result.class_counts:
        table.add_row(escape(plain_text(label)), f"{count:,}")
    console.print(table)
    console.print()


def _print_some(console: Console, title: str, photos: "tuple[Identified, ...]", count: int) -> None:
    if not photos:
        return
    _print_photos(console, title, photos)
    if count > len(photos):
        console.print(f"... and {count - len(photos):,} more (the page has them)")
    console.print()


def _print_photos(console: Console, title: str, photos: "tuple[Identified, ...]") -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for heading in (title, "", ""):
        table.add_column(heading, overflow="fold")
    for photo in photos:
        first, others = _tell(photo)
        if photo.doubtful and title != "doubtful":
            first += " (doubtful)"
        table.add_row(*(escape(plain_text(text)) for text in (photo.name, first, others)))
    console.print(table)


def _tell(photo: "Identified") -> tuple[str, str]:
    """Its class, and the others that it might be; or what is wrong with it."""
    from clew.patterns.identify.words import percent_text

    if photo.fault is not None:
        return "cannot be read", photo.fault.reason
    told = [f"{label} {percent_text(chance)}" for label, chance in photo.best]
    return told[0], ", ".join(told[1:])


def _print_places(console: Console, result: "IdentifyResult") -> None:
    _say(console, f"page in {result.page}")
    if result.sheets:
        more = f" and {len(result.sheets) - 1} more beside it" if len(result.sheets) > 1 else ""
        _say(console, f"contact sheet in {result.sheets[0]}{more}")
    _say(console, f"lists in {result.list_file} and {result.list_file.with_suffix('.csv')}")
    if (copies := result.copies) is not None:
        there = f", {copies.already_there:,} were there already" if copies.already_there else ""
        _say(console, f"{count_text(copies.copied, 'photo')} copied to {copies.folder}{there}")


class _Reporter(RunReporter):
    """How many photos are done, how fast, how long still."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "photos")

    def begin(self, photos: int) -> None:
        self._begin(0, photos, f"{count_text(photos, 'photo')} to identify")

    def advance(self, photos: int) -> None:
        self._advance(photos, 0)

    def _line(self) -> str:
        seconds = max(1e-9, time.monotonic() - self._started)
        left = (self._planned - self._made) * seconds / max(1, self._made)
        done = f"{self._made:,}/{self._planned:,} photos"
        return f"{done}, {self._rates(seconds)}, {duration_text(left)} left"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _say(console: Console, text: str) -> None:
    console.print(plain_text(text), markup=False, soft_wrap=True)
