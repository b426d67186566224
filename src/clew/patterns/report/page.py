"""Puts a training's sections together into one page."""

from importlib.resources import files

from clew.pages.markup import Html, tag
from clew.pages.shell import wrap_page
from clew.pages.wording import counted
from clew.patterns.report.headline import (
    describe_network,
    draw_tiles,
    tell_details,
    tell_headline,
)
from clew.patterns.report.pictures import Looking
from clew.patterns.report.run import Run
from clew.patterns.report.sections import make_sections
from clew.version import __version__


def make_page(run: Run, looking: Looking) -> str:
    """The whole HTML, pictures included."""
    return wrap_page(
        title=f"clew: patterns in {_name(run)}",
        header=_header(run),
        sections=make_sections(run, looking),
        footer=_footer(run),
        style=files("clew.patterns.report").joinpath("style.css").read_text(encoding="utf-8"),
    )


def _name(run: Run) -> str:
    """What was trained on; the photos of a set all lie in a folder of one name."""
    folder = run.data_folder or run.folder
    if folder.name == "photos" and (folder.parent / "set.json").is_file():
        folder = folder.parent
    return folder.name or str(folder)


def _header(run: Run) -> Html:
    photos = run.part("data").get("photos")
    told = [_name(run), describe_network(run)]
    told += [counted(photos, "photo")] if isinstance(photos, int) else []
    eyebrow = [tag("b", "clew"), tag("span", "patterns"), [tag("bdi", part) for part in told]]
    return tag(
        "header",
        tag("p", eyebrow, class_="eyebrow"),
        tag("h1", tell_headline(run), dir="auto"),
        tag("div", [tag("p", text) for text in tell_details(run)], class_="lead"),
        draw_tiles(run),
    )


def _footer(run: Run) -> Html:
    unseen = "" if run.is_seen else " that took no part in training; nothing was chosen on them"
    figures = (
        f"Figures: clew {__version__}, {describe_network(run)}, on "
        f"{counted(run.test_photos, 'photo')} of {_name(run)}{unseen}."
    )
    files_told = (
        "All figures are in results.json beside this page, every test photo's answer in "
        "predictions.csv, what was left out in left_out.csv."
    )
    return tag("footer", tag("p", tag("b", "To cite: "), figures), tag("p", files_told))
