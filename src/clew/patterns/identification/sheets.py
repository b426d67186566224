"""Thumbnails of the photos, and contact sheets: pages of them, each with its class, the model's
confidence and its name."""

import base64
import io
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from clew.base.cores import map_in_threads
from clew.base.texts import whole_percent
from clew.patterns.identification.results import (
    MADE_BY,
    Identified,
    count_workers,
    remove_sheets,
    sheet_file,
)
from clew.patterns.photos.decode import open_photo
from clew.patterns.photos.opening import PhotoError
from clew.storage.writing import replacing

THUMBNAIL_SIDE = 192
_QUALITY = 82
COLUMNS, ROWS = 8, 8
_LEAST_COLUMNS = 4  # the heading needs some width
_MARGIN, _GAP, _HEADING, _CAPTION = 36, 18, 78, 50
_PAPER, _WASH, _INK, _SOFT = "#fdfdfb", "#f0f0ec", "#1d2025", "#6b717b"
_SURE, _DOUBTFUL = "#1f5fa8", "#a8540a"
_BAR = 4


def make_thumbnails(
    photos: Iterable[Identified],
) -> Iterator[tuple[Identified, Image.Image | None]]:
    """Each photo with its thumbnail; None if it is missing or damaged by now."""
    return map_in_threads(lambda photo: (photo, _make(photo)), photos, count_workers())


def as_data_address(picture: Image.Image) -> str:
    """The image as a data URL for an <img>."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _make(photo: Identified) -> Image.Image | None:
    try:
        picture = open_photo(photo.path, at_least=THUMBNAIL_SIDE)
    except PhotoError:
        return None
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return picture


def write_line(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    *,
    size: int,
    color: str,
    room: float,
    bold: bool = False,
    right: bool = False,
) -> None:
    """Draw a line of text at most `room` pixels wide. `place` is its upper left corner, or with
    `right` its upper right one."""
    font = _font(size, bold)
    shown = shorten(printable(text), font, room)
    draw.text(place, shown, fill=color, font=font, anchor="ra" if right else "la")


def printable(text: str) -> str:
    """Without characters that cannot be drawn: control characters and halves of surrogate pairs."""
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


class ContactSheets:
    """Takes photos in display order, and writes a page as soon as it is full."""

    def __init__(self, folder: Path, *, title: str, photos: int) -> None:
        self._folder, self._title, self._photos = folder, title, photos
        self._taken = 0
        self._page = self._new_page()

    @property
    def pages(self) -> int:
        return -(-self._photos // (COLUMNS * ROWS))

    def add(self, photo: Identified, thumbnail: Image.Image | None) -> None:
        place = self._taken % (COLUMNS * ROWS)
        if self._taken and place == 0:
            self._write()
            self._page = self._new_page()
        row, column = divmod(place, COLUMNS)
        x = _MARGIN + column * (THUMBNAIL_SIDE + _GAP)
        y = _HEADING + row * (THUMBNAIL_SIDE + _CAPTION + _GAP)
        self._draw(photo, thumbnail, x, y)
        self._taken += 1

    def end(self) -> None:
        """Writes the last page, and deletes surplus pages of an earlier run."""
        if self._taken:
            self._write()
        remove_sheets(self._folder, self.pages)

    def _new_page(self) -> Image.Image:
        on_page = min(COLUMNS * ROWS, self._photos - self._taken)
        columns = max(_LEAST_COLUMNS, min(COLUMNS, self._photos))
        width = 2 * _MARGIN + columns * (THUMBNAIL_SIDE + _GAP) - _GAP
        rows = -(-on_page // COLUMNS)
        page = Image.new(
            "RGB", (width, _HEADING + rows * (THUMBNAIL_SIDE + _CAPTION + _GAP) + 8), _PAPER
        )
        number = self._taken // (COLUMNS * ROWS) + 1
        which = f"page {number} of {self.pages}" if self.pages > 1 else ""
        self._head(ImageDraw.Draw(page), width, which)
        return page

    def _head(self, draw: ImageDraw.ImageDraw, width: int, which: str) -> None:
        room = width - 2 * _MARGIN
        size, beside = 24 if width > 1000 else 18, 120 if which else 0
        write_line(
            draw,
            (_MARGIN, 28),
            self._title,
            size=size,
            color=_INK,
            room=room - beside,
            bold=True,
        )
        place = (width - _MARGIN, 32)
        write_line(draw, place, which, size=16, color=_SOFT, room=beside, right=True)

    def _draw(self, photo: Identified, picture: Image.Image | None, x: int, y: int) -> None:
        draw = ImageDraw.Draw(self._page)
        side = THUMBNAIL_SIDE
        draw.rectangle((x, y, x + side - 1, y + side - 1), fill=_WASH)
        if picture is not None:
            picture = ImageOps.contain(picture, (side, side), Image.Resampling.BICUBIC)
            offset = (x + (side - picture.width) // 2, y + (side - picture.height) // 2)
            self._page.paste(picture, offset)
        label, chance = photo.best[0]
        color = _DOUBTFUL if photo.doubtful else _SURE
        draw.rectangle((x, y + side, x + side - 1, y + side + _BAR - 1), fill=_WASH)
        full = round(side * chance)
        if full:
            draw.rectangle((x, y + side, x + full - 1, y + side + _BAR - 1), fill=color)
        shown = "unknown" if photo.unknown else f"{label}?" if photo.doubtful else label
        self._caption(draw, photo, x, y + side + _BAR + 6, shown)

    def _caption(
        self, draw: ImageDraw.ImageDraw, photo: Identified, x: int, y: int, label: str
    ) -> None:
        side = THUMBNAIL_SIDE
        color = _DOUBTFUL if photo.doubtful else _INK
        chance, beside = whole_percent(photo.best[0][1]), 54
        write_line(draw, (x, y), label, size=15, color=color, room=side - beside, bold=True)
        write_line(draw, (x + side, y), chance, size=15, color=color, room=beside, right=True)
        write_line(draw, (x, y + 23), Path(photo.name).name, size=12, color=_SOFT, room=side)

    def _write(self) -> None:
        number = (self._taken - 1) // (COLUMNS * ROWS)
        with replacing(self._folder / sheet_file(number)) as file:
            self._page.save(file, "JPEG", quality=88, comment=MADE_BY.encode())
