"""A photo for the eye: as blocks of colour at a terminal, as a JPEG of bounded size on a page."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from rich.color import Color
from rich.style import Style
from rich.text import Text

from clew.patterns.photos.decode import open_photo

# A block's upper half has the letter's colour, its lower half the ground's: two pixels a letter.
_HALF = "\N{UPPER HALF BLOCK}"
_QUALITY = 88


def draw_blocks(path: Path, *, columns: int, rows: int) -> Text:
    """The photo in at most so many letters; its shape is kept. Raises PhotoError."""
    picture = open_photo(path, at_least=2 * max(columns, 2 * rows))
    scale = min(columns / picture.width, 2 * rows / picture.height)
    width = max(1, round(picture.width * scale))
    height = max(2, 2 * round(picture.height * scale / 2))
    small = picture.resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(small).reshape(height // 2, 2, width, 3).tolist()
    text = Text(no_wrap=True)
    for upper, lower in pixels:
        for above, below in zip(upper, lower, strict=True):
            text.append(_HALF, _two_colours(above, below))
        text.append("\n")
    text.right_crop()
    return text


def encode_photo(path: Path, *, side: int) -> bytes:
    """A JPEG that any browser shows, no side longer than `side`. Raises PhotoError.

    Nothing of the file itself is sent on: no place, no date, no bytes that are not pixels.
    """
    picture = open_photo(path, at_least=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _two_colours(above: list[int], below: list[int]) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
