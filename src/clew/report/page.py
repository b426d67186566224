"""Puts the sections together into one page that needs nothing but itself."""

from collections.abc import Sequence
from importlib.resources import files

from clew.markup import Child, Html, join, tag
from clew.report.comparison import Comparison
from clew.report.finding import tell_details, tell_headline
from clew.report.overview import draw_tiles
from clew.report.section import Section
from clew.report.sections import make_sections
from clew.report.wording import counted
from clew.version import __version__


def make_page(comparison: Comparison, pictures: Sequence[str]) -> str:
    """The whole HTML. `pictures` are the names of the PNGs beside it, for the figures' links."""
    sections = make_sections(comparison, frozenset(pictures))
    title = f"clew: {comparison.best.title} on {_name(comparison)}"
    body = tag(
        "body",
        _header(comparison),
        _contents(sections),
        tag("main", [_section(section) for section in sections]),
        _footer(comparison),
        tag("div", id="tip", role="status", hidden=True),
        tag("script", _package_text("page.js")),
    )
    return join(Html("<!doctype html>\n"), tag("html", _head(title), body, lang="en"))


def _head(title: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _package_text("style.css")),
    )


def _package_text(name: str) -> Html:
    """Our own style and script, which are markup as they stand."""
    return Html(files("clew.report").joinpath(name).read_text(encoding="utf-8"))


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


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("a", section.short, href=f"#{section.name}") for section in sections]
    return tag("nav", links, aria_label="Contents")


def _section(section: Section) -> Html:
    content: Child = section.content
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.lead, class_="dek"),
        content,
        _caption(section),
        id=section.name,
    )


def _caption(section: Section) -> Html | None:
    if not section.reading:
        return None
    links = [
        tag("a", f"{name}.png", href=f"figures/{name}.png", class_="png")
        for name in section.pictures
    ]
    return tag("p", tag("b", "How to read it. "), section.reading, " ", links, class_="caption")


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
