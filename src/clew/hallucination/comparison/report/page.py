"""Puts a comparison's sections together into one page."""

from collections.abc import Sequence

from clew.hallucination.comparison.report.comparison import Comparison
from clew.hallucination.comparison.report.finding import tell_details, tell_headline
from clew.hallucination.comparison.report.overview import draw_tiles
from clew.hallucination.comparison.report.sections import make_sections
from clew.pages.markup import Html, tag
from clew.pages.shell import wrap_page
from clew.pages.wording import counted
from clew.version import __version__


def make_page(comparison: Comparison, pictures: Sequence[str]) -> str:
    """The whole HTML. `pictures` are the names of the PNGs beside it, for the figures' links."""
    return wrap_page(
        title=f"clew: {comparison.best.title} on {_name(comparison)}",
        header=_header(comparison),
        sections=make_sections(comparison, frozenset(pictures)),
        footer=_footer(comparison),
    )


def _name(comparison: Comparison) -> str:
    return str(comparison.part("data").get("name") or comparison.folder.name)


def _header(comparison: Comparison) -> Html:
    model = comparison.part("capture").get("model")
    named = model.get("id") if isinstance(model, dict) else model
    of = [counted(len(comparison.methods), "method"), _name(comparison), named]
    eyebrow = [tag("bdi", str(part)) for part in of if part]
    return tag(
        "header",
        tag(
            "p", tag("b", "clew"), tag("span", "comparison of detectors"), eyebrow, class_="eyebrow"
        ),
        tag("h1", tell_headline(comparison), dir="auto"),
        tag("div", [tag("p", text) for text in tell_details(comparison)], class_="lead"),
        draw_tiles(comparison),
    )


def _footer(comparison: Comparison) -> Html:
    best = comparison.best
    cite = (
        f"Figures: clew {__version__}, comparison of {counted(len(comparison.methods), 'method')} "
        f"on {_name(comparison)}, {counted(len(comparison.test), 'test answer')}; best on "
        f"validation: {best.title}."
    )
    return tag(
        "footer",
        tag("p", tag("b", "To cite: "), cite),
        tag(
            "p",
            "Made up is the positive class. A score is the probability that an answer is made up, "
            "scaled on validation. Nothing was chosen on the test split. All figures are in "
            "results.json and table.csv beside this page, every answer's scores in scores.arrow.",
        ),
    )
