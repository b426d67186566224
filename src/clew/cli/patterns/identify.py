"""clew patterns identify"""

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clew.cli import plan_flags
from clew.cli.errors import call_text, with_flags
from clew.cli.patterns.library_flags import LIBRARY, Library, Model, Review, SetName, Web
from clew.cli.printing import make_table, plain_text, print_line
from clew.cli.renderer import Renderer
from clew.wording import counted, whole_percent

if TYPE_CHECKING:
    from clew.patterns.identification.config import IdentifyConfig
    from clew.patterns.identification.results import Identified
    from clew.patterns.identification.run import IdentifyResult
    from clew.patterns.library.choose import Chosen

_EPILOG = "Example: `clew patterns identify holiday_photos --name animals --copy-to sorted`"
_FEW_PHOTOS = 20


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(identify)


def identify(
    folder: Annotated[Path, typer.Argument(help="A folder of photos (or one photo).")],
    model: Model = None,
    name: SetName = None,
    top_k: Annotated[int, typer.Option(help="So many classes are told of a photo.")] = 3,
    threshold: Annotated[
        float,
        typer.Option(help="Photos whose likeliest class is less probable than this are doubtful."),
    ] = 0.6,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output-dir",
            help="For the results.  [default: identified/FOLDER beside the model]",
        ),
    ] = None,
    copy_to: Annotated[
        Path | None,
        typer.Option(help="Copy the photos there, a folder a class; nothing is overwritten."),
    ] = None,
    thumbnails: Annotated[
        int, typer.Option(help="So many photos are shown on the page and the contact sheets.")
    ] = 500,
    review: Review = False,
    web: Web = False,
    library: Library = LIBRARY,
    device: plan_flags.Device = None,
) -> None:
    """Say what photos show: lists, a page and contact sheets, doubtful ones first."""
    from clew.patterns.identification.run import configure_identification
    from clew.patterns.library.choose import choose_model

    chosen = choose_model(model=model, name=name, library=library)
    usual = configure_identification(chosen, folder, device=device)
    config = replace(
        usual,
        out=output_dir or usual.out,
        top_k=top_k,
        threshold=threshold,
        copy_to=copy_to,
        thumbnails=thumbnails,
    )
    console = Console(highlight=False)
    result = identify_and_print(console, config)
    if not result.counts["doubtful"]:
        return
    if review or web:
        _review(console, chosen, result, web=web)
    else:
        say_how_to_review(console, chosen, output_dir)


def say_how_to_review(console: Console, chosen: "Chosen", output_dir: Path | None = None) -> None:
    """`output_dir` is where the results are, if not where they are looked for."""
    from clew.patterns.review.prepare import ReviewConfig, call_to_review

    review = call_to_review(chosen, ReviewConfig(identified=output_dir))
    print_line(console, f"look at the doubtful ones with: {call_text(review)}")


def _review(console: Console, chosen: "Chosen", result: "IdentifyResult", *, web: bool) -> None:
    from clew.cli.patterns.review import run_review
    from clew.patterns.review import ReviewConfig

    console.print()
    run_review(console, chosen, ReviewConfig(identified=result.folder), web=web)


def identify_and_print(console: Console, config: "IdentifyConfig") -> "IdentifyResult":
    """The command itself; `clew patterns flow` has it as one of its steps."""
    from clew.patterns.identification.run import identify_photos

    try:
        with Renderer(console) as reporter:
            result = identify_photos(config, reporter)
    except KeyboardInterrupt:
        print_line(console, "stopped before the end: the same command begins anew.")
        raise typer.Exit(128 + signal.SIGINT) from None
    print_result(console, result)
    return result


def print_result(console: Console, result: "IdentifyResult") -> None:
    from clew.patterns.identification.page import tell_counts
    from clew.patterns.identification.results import read_identified

    console.print(tell_counts(result.counts), style="bold")
    if result.counts["photos"] <= _FEW_PHOTOS:
        _print_photos(console, "photo", read_identified(result.list_file).photos)
    else:
        _print_classes(console, result)
        _print_some(console, "doubtful", result.doubtful, result.counts["doubtful"])
        _print_some(console, "cannot be read", result.faulty, result.counts["faulty"])
    for note in result.notes:
        print_line(console, f"note: {with_flags(note)}")
    _print_places(console, result)


def _print_classes(console: Console, result: "IdentifyResult") -> None:
    table = make_table("class", "photos")
    for label, count in result.class_counts:
        table.add_row(escape(plain_text(label)), f"{count:,}")
    console.print(table)
    console.print()


def _print_some(console: Console, title: str, photos: "tuple[Identified, ...]", count: int) -> None:
    if not photos:
        return
    _print_photos(console, title, photos)
    if count > len(photos):
        console.print(f"... and {count - len(photos):,} more (identified.csv has all)")
    console.print()


def _print_photos(console: Console, title: str, photos: "tuple[Identified, ...]") -> None:
    table = make_table()
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
    if photo.fault is not None:
        return "cannot be read", photo.fault.reason
    told = [f"{label} {whole_percent(chance)}" for label, chance in photo.best]
    return told[0], ", ".join(told[1:])


def _print_places(console: Console, result: "IdentifyResult") -> None:
    print_line(console, f"page in {result.page}")
    if result.sheets:
        more = f" and {len(result.sheets) - 1} more beside it" if len(result.sheets) > 1 else ""
        print_line(console, f"contact sheet in {result.sheets[0]}{more}")
    print_line(console, f"lists in {result.list_file} and {result.list_file.with_suffix('.csv')}")
    if (copies := result.copies) is not None:
        there = f", {copies.already_there:,} were there already" if copies.already_there else ""
        copied = f"{counted(copies.copied, 'photo')} copied to {copies.folder}{there}"
        unsure = f"; doubtful ones are in {copies.doubtful}" if result.counts["doubtful"] else ""
        print_line(console, f"{copied}{unsure}")
