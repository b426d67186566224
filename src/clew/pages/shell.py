"""What every report page is made of, whatever it tells: one file that needs nothing but itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from clew.pages.markup import Html, join, tag


@dataclass(frozen=True, kw_only=True)
class Section:
    """`lead` says what it shows, `reading` how to read it; `pictures` are names of the PNGs in
    figures/ that show the same."""

    name: str
    short: str  # its name in the contents
    title: str
    lead: str
    content: Html
    reading: str = ""
    pictures: tuple[str, ...] = ()

    def if_there(self, figure: object, reason: str) -> "Section":
        """The same, or with a sentence in the place of a figure that has nothing to show: nothing
        is left out silently."""
        if figure:
            return self
        said = tag("p", reason, class_="empty")
        return replace(self, lead="", content=said, reading="", pictures=())


def wrap_page(
    *, title: str, header: Html, sections: Sequence[Section], footer: Html, style: str = ""
) -> str:
    """The whole HTML. `style` is CSS of its own that stands behind that of all reports."""
    body = tag(
        "body",
        header,
        _contents(sections),
        tag("main", [_section(section) for section in sections]),
        footer,
        tag("div", id="tip", role="status", hidden=True),
        tag("script", _package_text("page.js")),
    )
    return join(Html("<!doctype html>\n"), tag("html", _head(title, style), body, lang="en"))


def _head(title: str, style: str) -> Html:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _package_text("style.css"), Html(style)),
    )


def _package_text(name: str) -> Html:
    """Our own style and script, which are markup as they stand."""
    return Html(files("clew.pages").joinpath(name).read_text(encoding="utf-8"))


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("a", section.short, href=f"#{section.name}") for section in sections]
    return tag("nav", links, aria_label="Contents")


def _section(section: Section) -> Html:
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.lead, class_="dek"),
        section.content,
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
