"""Builds HTML and SVG from nested calls. Every string that is not `Html` is escaped, so that
untrusted text never becomes markup."""

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

from clew.base.texts import for_page

_VOID = frozenset({"br", "hr", "img", "input", "meta"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None | Iterable[Child]"
Attribute: TypeAlias = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`tag("td", text, class_="name", data_key="lstm")`; attributes of None or False are
    skipped."""
    opening = f"<{name}{''.join(map(_attribute, attributes, attributes.values()))}>"
    if name in _VOID:
        return Html(opening)
    return Html(f"{opening}{join(*children)}</{name}>")


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
