"""Contact sheets: pages of thumbnails, each with its class, how sure the model is, its name."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from clew.patterns.identification.files import remove_sheets, sheet_file
from clew.patterns.identification.lettering import write_line
from clew.patterns.identification.results import MADE_BY, Identified
from clew.patterns.identification.thumbnails import THUMBNAIL_SIDE
from clew.storage.writing import replacing
from clew.wording import whole_percent

COLUMNS, ROWS = 8, 8
_LEAST_COLUMNS = 4  # the heading needs some width
_MARGIN, _GAP, _HEADING, _CAPTION = 36, 18, 78, 50
_PAPER, _WASH, _INK, _SOFT = "#fdfdfb", "#f0f0ec", "#1d2025", "#6b717b"
_SURE, _DOUBTFUL = "#1f5fa8", "#a8540a"
_BAR = 4


class ContactSheets:
    """Takes photos in the order they shall stand, and writes a page as soon as it is full."""

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
        """Write the last page; pages of an earlier run that are too many go away."""
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
            colour=_INK,
            room=room - beside,
            bold=True,
        )
        place = (width - _MARGIN, 32)
        write_line(draw, place, which, size=16, colour=_SOFT, room=beside, right=True)

    def _draw(self, photo: Identified, picture: Image.Image | None, x: int, y: int) -> None:
        draw = ImageDraw.Draw(self._page)
        side = THUMBNAIL_SIDE
        draw.rectangle((x, y, x + side - 1, y + side - 1), fill=_WASH)
        if picture is not None:
            picture = ImageOps.contain(picture, (side, side), Image.Resampling.BICUBIC)
            offset = (x + (side - picture.width) // 2, y + (side - picture.height) // 2)
            self._page.paste(picture, offset)
        label, chance = photo.best[0]
        colour = _DOUBTFUL if photo.doubtful else _SURE
        draw.rectangle((x, y + side, x + side - 1, y + side + _BAR - 1), fill=_WASH)
        full = round(side * chance)
        if full:
            draw.rectangle((x, y + side, x + full - 1, y + side + _BAR - 1), fill=colour)
        self._caption(draw, photo, x, y + side + _BAR + 6, f"{label}?" if photo.doubtful else label)

    def _caption(
        self, draw: ImageDraw.ImageDraw, photo: Identified, x: int, y: int, label: str
    ) -> None:
        side = THUMBNAIL_SIDE
        colour = _DOUBTFUL if photo.doubtful else _INK
        chance, beside = whole_percent(photo.best[0][1]), 54
        write_line(draw, (x, y), label, size=15, colour=colour, room=side - beside, bold=True)
        write_line(draw, (x + side, y), chance, size=15, colour=colour, room=beside, right=True)
        write_line(draw, (x, y + 23), Path(photo.name).name, size=12, colour=_SOFT, room=side)

    def _write(self) -> None:
        number = (self._taken - 1) // (COLUMNS * ROWS)
        with replacing(self._folder / sheet_file(number)) as file:
            self._page.save(file, "JPEG", quality=88, comment=MADE_BY.encode())
