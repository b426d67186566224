"""The frame of every report page: one self-contained file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from clew.pages.markup import Html, join, tag


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report page. `lead` says what it shows, `reading` how to read it; `pictures`
    are the names of the same figures as PNGs in figures/. A section with a `missing` reason has
    nothing to show: it is hidden, and its reason is listed at the end of the page."""

    name: str
    short: str  # its name in the contents
    title: str
    lead: str
    content: Html
    reading: str = ""
    pictures: tuple[str, ...] = ()
    missing: str = ""

    def if_there(self, figure: object, reason: str) -> "Section":
        """This section, hidden with `reason` if `figure` is empty."""
        return self if figure else replace(self, missing=reason)


def wrap_page(
    *, title: str, header: Html, sections: Sequence[Section], footer: Html, style: str = ""
) -> str:
    """The whole HTML. `style` is the page's own CSS, added after that of all reports."""
    shown = [section for section in sections if not section.missing]
    body = tag(
        "body",
        header,
        _contents(shown),
        tag("main", [_section(section) for section in shown]),
        _hidden([section for section in sections if section.missing]),
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
    """The package's own CSS or script, which needs no escaping."""
    return Html(files("clew.pages").joinpath(name).read_text(encoding="utf-8"))


def _contents(sections: Sequence[Section]) -> Html:
    links = [tag("a", section.short, href=f"#{section.name}") for section in sections]
    return tag("nav", links, aria_label="Contents")


def _section(section: Section) -> Html:
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.lead, class_="dek") if section.lead else None,
        section.content,
        _caption(section),
        id=section.name,
    )


def _hidden(sections: Sequence[Section]) -> Html | None:
    """The list of hidden sections with their reasons: nothing is excluded silently."""
    if not sections:
        return None
    names = ", ".join(section.short.lower() for section in sections)
    items = [tag("li", tag("b", section.title), ": ", section.missing) for section in sections]
    return tag(
        "details",
        tag("summary", f"Empty sections: {names}"),
        tag("ul", items),
        class_="hidden-sections",
    )


def _caption(section: Section) -> Html | None:
    if not section.reading:
        return None
    links = [
        tag("a", f"{name}.png", href=f"figures/{name}.png", class_="png")
        for name in section.pictures
    ]
    return tag("p", tag("b", "How to read this. "), section.reading, " ", links, class_="caption")
