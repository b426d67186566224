"""What all panels of the PNG share: colours, and texts that the font can draw."""

import functools
import textwrap

from matplotlib import font_manager

from clew.hallucination.answer_page.answer import ShownAnswer

INK, QUIET, FAINT, PROMPT = "#1f2a33", "#66727c", "#dde2e6", "#9aa5ae"
_COLOURS = {"right": "#2a6f97", "made up": "#c8553d", None: "#5b6770"}
_MISSING = "\u25af"
_MOST_LINES = 8


def colour_of(answer: ShownAnswer) -> str:
    return colour_of_kind(answer.kind)


def colour_of_kind(kind: str | None) -> str:
    return _COLOURS[kind]


def drawable(text: str) -> str:
    """What the font lacks becomes a box; matplotlib would draw one too, with a warning each."""
    known = _known_letters()
    return "".join(
        letter if letter == "\n" or ord(letter) in known else _MISSING for letter in text
    )


def wrap(text: str, width: int) -> str:
    """Lines of at most `width` letters; what goes on for very long is cut."""
    lines = textwrap.wrap(text, width) or [""]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], "..."]
    return "\n".join(lines)


@functools.cache
def _known_letters() -> frozenset[int]:
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    return frozenset(font.get_charmap())
