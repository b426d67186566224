"""Text on a picture, cut with an ellipsis where it is too long. The font comes with matplotlib, so
that accents, Greek and Cyrillic are there on every machine."""

import unicodedata
from functools import cache
from pathlib import Path

from PIL import ImageDraw, ImageFont


def write_line(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    *,
    size: int,
    colour: str,
    room: float,
    bold: bool = False,
    right: bool = False,
) -> None:
    """`place` is the upper left corner of the line, its upper right one with `right`; the line
    takes at most `room` pixels."""
    font = _font(size, bold)
    shown = shorten(printable(text), font, room)
    draw.text(place, shown, fill=colour, font=font, anchor="ra" if right else "la")


def printable(text: str) -> str:
    """Without what has no picture: control characters and halves of surrogate pairs."""
    composed = unicodedata.normalize("NFC", text)
    return "".join(" " if unicodedata.category(one) in ("Cc", "Cs") else one for one in composed)


def shorten(text: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    if font.getlength(text) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = font.getlength(f"{text[:middle].rstrip()}…") <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return f"{text[:low].rstrip()}…"


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    import matplotlib  # only for its fonts, and not before they are needed

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)
