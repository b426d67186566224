"""Builds HTML and SVG from nested calls. Every string that is not `Html` is escaped, so that
untrusted text never becomes markup."""

import html
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from clew.base.texts import for_page

_VOID = frozenset({"br", "hr", "img", "input", "meta"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None | Iterable[Child]"
Attribute: TypeAlias = str | int | float | bool | None
Size: TypeAlias = str | float  # of an SVG: pixels, or text with a unit


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`tag("td", text, class_="name", data_key="lstm")`; attributes of None or False are
    skipped."""
    opening = f"<{name}{''.join(map(_attribute, attributes, attributes.values()))}>"
    if name in _VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{name}>")


def rect(x: Size, y: Size, width: Size, height: Size, *inside: Child, **more: Attribute) -> Html:
    return tag("rect", *inside, x=x, y=y, width=width, height=height, **more)


def circle(x: Size, y: Size, r: Size, *inside: Child, **more: Attribute) -> Html:
    return tag("circle", *inside, cx=x, cy=y, r=r, **more)


def join(*children: Child) -> Html:
    """The children in order; None is skipped."""
    return Html("".join(map(_markup, children)))


def with_settings(text: str) -> Html:
    """Turn settings in backticks, as in the library's messages, into <code>."""
    parts = re.split(r"`([^`\n]+)`", text)
    return join([tag("code", part) if place % 2 else part for place, part in enumerate(parts)])


def _markup(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if child is None:
        return ""
    if isinstance(child, str):
        return html.escape(for_page(child))
    if isinstance(child, int | float):
        return str(child)
    return "".join(map(_markup, child))


def _attribute(name: str, value: Attribute) -> str:
    name = name.removesuffix("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{_markup(value if isinstance(value, str) else _short(value))}"'


def _short(value: float) -> str:
    """A coordinate rounded to a tenth of a pixel, which keeps pages with many curves small."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report page. `lead` says what it shows, `reading` how to read it; `pictures`
    are the figures as PNGs in figures/: by name, the rows of each. A section with a `missing`
    reason has nothing to show: it is hidden, and its reason is listed at the end of the page."""

    name: str
    short: str  # its name in the contents
    title: str
    lead: str
    content: Html
    reading: str = ""
    pictures: Mapping[str, Sequence[Sequence[Html]]] = field(default_factory=dict)
    missing: str = ""


def make_section(
    package: str,
    name: str,
    content: Html,
    *,
    figure: object = True,
    pictures: Mapping[str, Sequence[Sequence[Html]]] | None = None,
    **values: object,
) -> Section:
    """A section with the texts of the package's sections.toml, in which the `values` are filled in;
    hidden if `figure` is empty."""
    texts = section_texts(package, name, **values)
    missing = texts.pop("missing", "")
    return Section(
        name=name,
        content=content,
        pictures=(pictures or {}) if figure else {},
        missing="" if figure else missing,
        **texts,
    )


def section_texts(package: str, name: str, **values: object) -> dict[str, str]:
    """What the package's sections.toml says about a section, with the `values` filled in."""
    return {key: text.format(**values) for key, text in _read_texts(package)[name].items()}


@cache
def _read_texts(package: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(files(package).joinpath("sections.toml").read_text("utf-8"))


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
    return join(
        Html("<!doctype html>\n"),
        tag(
            "html", html_head(title, join(_package_text("style.css"), Html(style))), body, lang="en"
        ),
    )


def html_head(title: str, style: Html, generator: str | None = None) -> Html:
    """The head of a self-contained page, for light and dark screens of any width."""
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=generator) if generator else None,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", style),
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
