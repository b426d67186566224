"""report.html: the sections of a comparison in reading order, written with their figures."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from clew.hallucination.comparison.report.agreement import agreement_section
from clew.hallucination.comparison.report.comparison import Comparison, read_comparison
from clew.hallucination.comparison.report.curves import curves_section
from clew.hallucination.comparison.report.headline import (
    draw_tiles,
    tell_details,
    tell_headline,
    tell_where,
)
from clew.hallucination.comparison.report.methods import rank_section, table_section
from clew.hallucination.comparison.report.mistakes import disputed_section, mistakes_section
from clew.hallucination.comparison.report.origin import (
    data_section,
    excluded_section,
    settings_section,
)
from clew.hallucination.comparison.report.pictures import PICTURES, draw_pictures
from clew.hallucination.comparison.report.questions import categories_section
from clew.hallucination.comparison.report.sets import left_out_section, transfer_section
from clew.hallucination.comparison.report.tokens import tokens_section
from clew.hallucination.comparison.report.training import layers_section, losses_section
from clew.pages.markup import Html, Section, tag, wrap_page
from clew.pages.numbers import counted
from clew.storage.writing import replace_file
from clew.version import __version__

_ORDER = (
    rank_section,
    left_out_section,
    table_section,
    curves_section,
    layers_section,
    mistakes_section,
    agreement_section,
    disputed_section,
    categories_section,
    tokens_section,
    transfer_section,
    losses_section,
    excluded_section,
    data_section,
    settings_section,
)
REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
_KIND = "comparison of hallucination detectors"
logger = logging.getLogger(__name__)


def make_page(comparison: Comparison, pictures: Sequence[str]) -> str:
    """The whole HTML. `pictures` are the names of the PNGs beside it, for the figures' links."""
    return wrap_page(
        title=f"clew: {comparison.best.title}{tell_where(comparison)}",
        header=_header(comparison),
        sections=make_sections(comparison, frozenset(pictures)),
        footer=_footer(comparison),
        style=(files(__package__) / "style.css").read_text("utf-8"),
    )


def _header(comparison: Comparison) -> Html:
    model = comparison.part("capture").get("model")
    named = model.get("id") if isinstance(model, dict) else model
    where = tell_where(comparison).removeprefix(", ").removeprefix(" on ")
    of = [counted(len(comparison.methods), "method"), where, named]
    eyebrow = [tag("bdi", str(part)) for part in of if part]
    return tag(
        "header",
        tag("p", tag("b", "clew"), tag("span", _KIND), eyebrow, class_="eyebrow"),
        tag("h1", tell_headline(comparison), dir="auto"),
        tag("div", [tag("p", text) for text in tell_details(comparison)], class_="lead"),
        draw_tiles(comparison),
    )


def _tell_choice(comparison: Comparison) -> str:
    if not comparison.raw.get("leave_one_out"):
        return "Nothing was chosen on the test answers."
    return (
        "No method was fitted or calibrated on the set that it is tested on; only the best method "
        f"was chosen on {comparison.chosen_on}, which are among the test answers."
    )


def _footer(comparison: Comparison) -> Html:
    best = comparison.best
    cite = (
        f"clew {__version__}, comparison of {counted(len(comparison.methods), 'method')} "
        f"{tell_where(comparison).removeprefix(',').strip()}, "
        f"{counted(len(comparison.test), 'test answer')}; best on {comparison.chosen_on}: "
        f"{best.title}."
    )
    if not comparison.has_best:
        cite = cite.partition("; best on")[0] + "."
    return tag(
        "footer",
        tag("p", tag("b", "Cite as: "), cite),
        tag(
            "p",
            "Hallucinated is the positive class. A risk is a method's probability that an answer "
            "is hallucinated, calibrated on validation answers. "
            f"{_tell_choice(comparison)} All metrics are in results.json and table.csv beside this "
            "page; the risks of every answer are in scores.arrow.",
        ),
    )


def make_sections(comparison: Comparison, pictures: frozenset[str]) -> list[Section]:
    """All sections of the page; one with nothing to show carries the reason. `pictures` are the
    PNGs that exist."""
    return [_with_existing(make(comparison), pictures) for make in _ORDER]


def _with_existing(section: Section, pictures: frozenset[str]) -> Section:
    return replace(section, pictures=tuple(name for name in section.pictures if name in pictures))


def write_report(folder: Path) -> Path:
    """Write report.html and return its path. The page is self-contained; the PNGs next to it are
    the same figures for slides and papers.

    Raises StoreError when the folder holds no finished comparison."""
    comparison = read_comparison(folder)
    pictures = draw_pictures(comparison)
    _write_pictures(folder / FIGURES_FOLDER, pictures)
    page = make_page(comparison, list(pictures))
    # A lone surrogate, which JSON may hold, cannot be encoded: it becomes a question mark.
    replace_file(folder / REPORT_FILE, page.encode("utf-8", errors="replace"))
    logger.info("wrote %s and %d pictures", folder / REPORT_FILE, len(pictures))
    return folder / REPORT_FILE


def _write_pictures(folder: Path, pictures: dict[str, bytes]) -> None:
    """Write the PNGs, and remove those of an earlier report that this one does not have."""
    folder.mkdir(exist_ok=True)
    for name in PICTURES:
        if name not in pictures:
            (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in pictures.items():
        replace_file(folder / f"{name}.png", image)
