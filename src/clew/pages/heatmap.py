"""Draws a matrix as SVG: one color, deeper for more, with the number in every cell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.pages.markup import Html, tag

_CELL, _CHARACTER, _LONGEST = 38, 6.3, 36
_NOTED, _LINE = 82, 12  # the width of a cell with notes, and the height of each of their lines
_SLANT = 0.71  # column names rise at 45 degrees
DEEP = 0.8  # from here on the number is drawn in the paper's color


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A heat map; `values` may be NaN. `low` is pale, `high` is deep. `notes` are lines below the
    number of every cell."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    tips: tuple[tuple[str, ...], ...]
    low: float
    high: float
    notes: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @property
    def cell(self) -> tuple[float, float]:
        """The width and height of a cell."""
        lines = max((len(cell) for row in self.notes for cell in row), default=0)
        return (_NOTED, _CELL - 8 + _LINE * lines) if lines else (_CELL, _CELL)

    def depth(self, value: float) -> float:
        """The depth of the color, from 0 to 1."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def draw_matrix(matrix: Matrix, *, words: str) -> Html:
    """Draw the matrix at its natural size; it scrolls on a narrower screen."""
    cell_width, cell_height = matrix.cell
    left, (top, right) = 14 + _length(matrix.rows), _rise(matrix.columns, cell_width)
    width = left + cell_width * len(matrix.columns) + right
    height = top + cell_height * len(matrix.rows) + 4
    picture = tag(
        "svg",
        [
            _column_name(name, left + cell_width * (place + 0.5) + 3, top)
            for place, name in enumerate(matrix.columns)
        ],
        [_row(matrix, row, left, top) for row in range(len(matrix.rows))],
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="heat",
        role="img",
        aria_label=words,
    )
    return tag("div", picture, class_="scroll", tabindex="0")


def _length(names: Sequence[str]) -> float:
    return _CHARACTER * max(len(_cut(name)) for name in names)


def _rise(names: Sequence[str], cell_width: float) -> tuple[float, float]:
    """How far the slanted names extend upwards, and the last one to the right."""
    beyond = _SLANT * _length(names[-1:]) - cell_width / 2 + 12
    return 22 + _SLANT * _length(names), max(0.0, beyond)


def _column_name(name: str, x: float, top: float) -> Html:
    y = top - 8
    turned = f"rotate(-45 {x:.1f} {y:.1f})"
    return tag("text", _cut(name), x=x, y=y, transform=turned, class_="name")


def _row(matrix: Matrix, row: int, left: float, top: float) -> Html:
    width, height = matrix.cell
    y = top + height * row
    name = tag("text", _cut(matrix.rows[row]), x=left - 8, y=y + 23, class_="name end")
    cells = [
        _cell(matrix, row, column, x=left + width * column, y=y)
        for column in range(len(matrix.columns))
    ]
    return tag("g", name, cells)


def _cell(matrix: Matrix, row: int, column: int, *, x: float, y: float) -> Html:
    value = float(matrix.values[row, column])
    depth = matrix.depth(value) if np.isfinite(value) else 0.0
    width, height = matrix.cell
    box = tag(
        "rect",
        x=x + 1,
        y=y + 1,
        width=width - 2,
        height=height - 2,
        rx=3,
        style=f"fill-opacity:{depth:.2f}",
    )
    words = short_number(value)
    tone = "deep" if depth > DEEP else "pale"
    middle = x + width / 2
    text = tag("text", words, x=middle, y=y + 23, class_=f"cell middle {tone}")
    notes = [
        tag("text", note, x=middle, y=y + 36 + _LINE * line, class_=f"note middle {tone}")
        for line, note in enumerate(matrix.notes[row][column] if matrix.notes else ())
    ]
    return tag("g", box, text, notes, class_="cell-box", data_tip=matrix.tips[row][column])


def short_number(value: float) -> str:
    """Two decimals without the leading zero."""
    if not np.isfinite(value):
        return "\N{EN DASH}"
    text = f"{value:.2f}"
    return {"1.00": "1", "-0.00": ".00"}.get(text, text.replace("0.", ".", 1)).replace("-", "−")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
