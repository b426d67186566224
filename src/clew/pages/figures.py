"""Figures: curves in panels, values with intervals (a forest plot), matrices. Each is described
once and drawn as SVG in the page's style; `png` draws the same SVG for slides and papers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clew.pages.markup import Html, circle, join, rect, tag

DASHES = ("", "6 3", "2 3", "9 3 2 3")
WIDTH, HEIGHT, LOW_HEIGHT = 360, 300, 180
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 40, 42
_LEGEND_STEP = 96


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve. `color` is a color of the page's style, `dash` an index of DASHES. Elements with the
    same `key` are highlighted together. A line that is not shown is pale gray, or hidden where the
    panel says so, until its key is picked."""

    x: np.ndarray
    y: np.ndarray
    color: str
    tip: str
    dash: int = 0
    key: str | None = None
    is_shown: bool = True
    has_dots: bool = False
    is_thin: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    x: float
    y: float
    color: str
    tip: str


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A thin reference line, with a label at the given point."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    label: str = ""
    label_at: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    lines: tuple[Line, ...]
    guides: tuple[Guide, ...] = ()
    dots: tuple[Dot, ...] = ()
    legend: tuple[tuple[str, str, int], ...] = ()  # words, color, dash
    is_low: bool = False
    has_whole_steps: bool = False  # epochs and layers are counted, not measured
    hides_others: bool = False  # lines that are not shown are hidden, not gray


def nice_ticks(low: float, high: float, *, count: int = 5, is_whole: bool = False) -> list[float]:
    """About `count` round numbers within the range."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(size * scale for size in (1, 2, 2.5, 5, 10) if size * scale >= rough * 0.999)
    step = max(round(step), 1) if is_whole else step
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def padded_range(values: Iterable[float]) -> tuple[float, float]:
    """From the least to the greatest, padded by 5% on both sides; (0, 1) without values."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = 0.05 * (high - low) or 0.05
    return low - room, high + room


class Frame:
    """Maps values to picture coordinates."""

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        *,
        left: float,
        right: float,
        top: float,
        bottom: float,
    ) -> None:
        self.left, self.right, self.top, self.bottom = left, right, top, bottom
        self._x, self._y = x_range, y_range

    def x(self, value: float) -> float:
        low, high = self._x
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def path(self, x: Iterable[float], y: Iterable[float]) -> str:
        """The SVG path of a curve, interrupted at non-finite values."""
        command, parts = "M", []
        for one, other in zip(x, y, strict=True):
            if not (np.isfinite(one) and np.isfinite(other)):
                command = "M"
                continue
            parts.append(f"{command}{self.x(one):.1f} {self.y(other):.1f}")
            command = "L"
        return "".join(parts)


def draw_panel(panel: Panel, titles: Mapping[str, str] | None = None) -> Html:
    """Draw the panel. With `titles` by key, the lines that are shown are named below it: where the
    page does not name them beside it."""
    height = LOW_HEIGHT if panel.is_low else HEIGHT
    sides = {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": height - BOTTOM}
    frame = Frame(panel.x_range, panel.y_range, **sides)
    behind = sorted(panel.lines, key=lambda line: line.is_shown)
    named = [line for line in panel.lines if line.is_shown and line.key in (titles or {})]
    below = [
        _key(
            (titles or {})[str(line.key)],
            line.color,
            line.dash,
            x=LEFT,
            y=height + 6 + 16 * row,
        )
        for row, line in enumerate(named)
    ]
    return tag(
        "svg",
        tag("text", panel.title, x=LEFT, y=14, class_="panel-title"),
        _axes(panel, frame),
        tag("g", [_guide(guide, frame) for guide in panel.guides], class_="guides"),
        tag("g", [_line(line, frame) for line in behind], class_="lines"),
        [
            circle(frame.x(dot.x), frame.y(dot.y), 5, class_=f"mark {dot.color}", data_tip=dot.tip)
            for dot in panel.dots
        ],
        _legend(panel, frame),
        below,
        viewBox=f"0 0 {WIDTH} {height + 18 * len(below)}",
        class_="panel sparse" if panel.hides_others else "panel",
        role="img",
        aria_label=f"{panel.title}: {panel.y_label} over {panel.x_label}",
    )


def draw_panels(panels: Sequence[Panel]) -> Html:
    return tag("div", [draw_panel(panel) for panel in panels], class_="panels")


def in_rows(figures: Sequence[Html], columns: int) -> list[Sequence[Html]]:
    """The figures of a picture, row by row."""
    return [figures[start : start + columns] for start in range(0, len(figures), columns)]


def _axes(panel: Panel, frame: Frame) -> Html:
    xs = nice_ticks(*panel.x_range, count=6, is_whole=panel.has_whole_steps)
    ys = [(y, frame.y(y)) for y in nice_ticks(*panel.y_range, count=3 if panel.is_low else 5)]
    return tag(
        "g",
        [tag("line", x1=LEFT, x2=frame.right, y1=y, y2=y, class_="grid") for _, y in ys],
        [tag("text", f"{v:g}", x=LEFT - 6, y=y + 3.5, class_="tick end") for v, y in ys],
        [
            tag("text", f"{v:g}", x=frame.x(v), y=frame.bottom + 15, class_="tick middle")
            for v in xs
        ],
        tag("line", x1=LEFT, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="base"),
        tag("text", panel.x_label, x=frame.right, y=frame.bottom + 34, class_="axis end"),
        tag("text", panel.y_label, x=LEFT, y=TOP - 9, class_="axis"),
        class_="axes",
    )


def _guide(guide: Guide, frame: Frame) -> Html:
    x, y = guide.label_at
    words = tag("text", guide.label, x=frame.x(x), y=frame.y(y) - 4, class_="guide-label")
    path = tag("path", d=frame.path(guide.x, guide.y), class_="guide")
    return join(path, words if guide.label else None)


def _line(line: Line, frame: Frame) -> Html:
    """Draw a curve. The wide path below it is invisible: it is the target for the mouse or a
    finger."""
    path = frame.path(line.x, line.y)
    dots = zip(line.x, line.y, strict=True) if line.has_dots else ()
    shown, thin = " shown" if line.is_shown else "", " thin" if line.is_thin else ""
    return tag(
        "g",
        tag("path", d=path, class_="hit"),
        tag("path", d=path, class_="stroke", stroke_dasharray=DASHES[line.dash] or None),
        [circle(frame.x(x), frame.y(y), 2.6) for x, y in dots],
        class_=f"curve {line.color}{shown}{thin}",
        data_key=line.key,
        data_tip=line.tip,
    )


def _legend(panel: Panel, frame: Frame) -> Html:
    start = frame.right - _LEGEND_STEP * len(panel.legend) + 14
    keys = [
        _key(*entry, x=start + _LEGEND_STEP * place, y=TOP - 12.5)
        for place, entry in enumerate(panel.legend)
    ]
    return tag("g", keys, class_="legend")


def _key(words: str, color: str, dash: int, *, x: float, y: float) -> Html:
    dashes = DASHES[dash] or None
    stroke = tag("line", x1=x, x2=x + 20, y1=y, y2=y, stroke_dasharray=dashes, class_="stroke")
    text = tag("text", words, x=x + 25, y=y + 3.5, class_="axis")
    return tag("g", stroke, text, class_=f"curve shown {color}")


# The parts of a printed forest plot, from the left: the labels, the intervals; the height of a row.
_LABELS, _TRACK, _ROW = 290, 420, 26


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """A value with its interval: one row of a forest plot. Missing parts are not drawn."""

    label: str
    color: str
    value: float | None
    interval: tuple[float, float] | None
    text: str
    tip: str
    key: str | None = None
    hollow: float | None = None
    is_marked: bool = False
    note: str = ""
    series: str = ""  # what its color means


def draw_forest(
    rows: Sequence[IntervalRow], *, reference: float, words: str, is_grouped: bool = False
) -> Html:
    """Draw a forest plot as HTML with narrow SVGs in percentages: the text keeps its size on a
    phone. `reference` is the chance level, `words` label the axis. With `is_grouped`, every marked
    row starts a group."""
    ticks = _forest_ticks(rows, reference)
    marked = [
        tag("span", f"{tick:g}", style=f"left:{place}", class_="forest-tick")
        for tick, place in ticks.items()
    ]
    axis = tag(
        "div",
        tag("div", class_="label"),
        tag("div", marked, class_="ticks"),
        tag("div", words, class_="value muted"),
        class_="forest-row axis-row",
        aria_hidden="true",
    )
    return tag(
        "div",
        [_forest_row(row, rows, reference) for row in rows],
        axis,
        class_="forest grouped" if is_grouped else "forest",
    )


def print_forest(rows: Sequence[IntervalRow], *, reference: float, words: str) -> Html:
    """The same as one SVG of fixed width, with what the colors mean."""
    series = dict.fromkeys((row.series, row.color) for row in rows if row.series)
    step, bottom, beside = 700 / max(len(series), 4), _ROW * (len(rows) + 1), _LABELS + _TRACK + 14
    keys = [
        tag(
            "g",
            circle(_LABELS + step * place, 10, 5, class_="point"),
            tag("text", name, x=_LABELS + step * place + 12, y=14),
            class_=color,
        )
        for place, (name, color) in enumerate(series)
    ]
    lines = [
        tag(
            "g",
            tag("text", row.label or row.note, x=_LABELS - 12, y=y + 17, class_="label end"),
            _track(row, rows, reference, x=_LABELS, y=y, width=_TRACK, height=_ROW),
            tag("text", row.text, x=beside, y=y + 17, class_="value"),
            class_=f"forest-row {row.color}{' best' if row.is_marked else ''}",
        )
        for y, row in zip(range(_ROW, bottom, _ROW), rows, strict=True)
    ]
    ticks = [
        tag("text", f"{tick:g}", x=place, y=16, class_="middle")
        for tick, place in _forest_ticks(rows, reference).items()
    ]
    return tag(
        "svg",
        keys,
        lines,
        tag("svg", ticks, x=_LABELS, y=bottom, width=_TRACK, height=_ROW),
        tag("text", words, x=beside, y=bottom + 16),
        viewBox=f"0 0 {_LABELS + _TRACK + 170} {bottom + _ROW}",
        class_="forest",
    )


def _forest_range(rows: Sequence[IntervalRow], reference: float) -> tuple[float, float]:
    """The range of the axis: covers every interval and the reference, in steps of 0.05."""
    found = [(row.value, row.hollow, *(row.interval or ())) for row in rows]
    values = [reference, *(value for some in found for value in some if value is not None)]
    low, high = min(values), max(values)
    return max(int(low * 20 - 0.5) / 20, 0.0), min(int(high * 20 + 1.5) / 20, 1.0)


def _forest_ticks(rows: Sequence[IntervalRow], reference: float) -> dict[float, str]:
    """The numbers of the axis, and where they stand."""
    low, high = _forest_range(rows, reference)
    return {tick: _place(tick, low, high) for tick in nice_ticks(low, high, count=6)}


def _place(value: float, low: float, high: float) -> str:
    return f"{2 + 96 * (value - low) / (high - low):.2f}%"


def _forest_row(row: IntervalRow, rows: Sequence[IntervalRow], reference: float) -> Html:
    note = tag("small", row.note, class_="note") if row.note else None
    return tag(
        "div",
        tag("div", tag("bdi", row.label), note, class_="label"),
        _track(row, rows, reference),
        tag("div", row.text, class_="value"),
        class_=f"forest-row {row.color}{' best' if row.is_marked else ''}",
        data_key=row.key,
        data_tip=row.tip,
    )


def _track(row: IntervalRow, rows: Sequence[IntervalRow], reference: float, **where: float) -> Html:
    low, high = _forest_range(rows, reference)
    grid = [(place, "grid") for place in _forest_ticks(rows, reference).values()]
    lines = [
        tag("line", x1=place, x2=place, y1="0", y2="100%", class_=name)
        for place, name in [*grid, (_place(reference, low, high), "reference")]
    ]
    marks = []
    if row.interval is not None:
        first, last = (_place(value, low, high) for value in row.interval)
        marks.append(tag("line", x1=first, x2=last, y1="50%", y2="50%", class_="span"))
    for value, radius, name in ((row.hollow, 3.5, "hollow"), (row.value, 5, "point")):
        if value is not None:
            at = _place(value, low, high)
            marks.append(circle(at, "50%", radius, class_=name))
    return tag("svg", lines, marks, aria_hidden="true", **where)


_CELL, _CHARACTER, _LONGEST = 38, 6.3, 36
_NOTED, _LINE = 82, 12  # the width of a cell with notes, and the height of each of their lines
_SLANT = 0.71  # column names rise at 45 degrees
_DEEP = 0.8  # from here on the number is drawn in the paper's color


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
    names = []
    for place, name in enumerate(matrix.columns):
        x, y = left + cell_width * (place + 0.5) + 3, top - 8
        turned = f"rotate(-45 {x:.1f} {y:.1f})"
        names.append(tag("text", _cut(name), x=x, y=y, transform=turned, class_="name"))
    picture = tag(
        "svg",
        names,
        [_matrix_row(matrix, row, left, top) for row in range(len(matrix.rows))],
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


def _matrix_row(matrix: Matrix, row: int, left: float, top: float) -> Html:
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
    box = rect(x + 1, y + 1, width - 2, height - 2, rx=3, style=f"fill-opacity:{depth:.2f}")
    words = _short_number(value)
    tone = "deep" if depth > _DEEP else "pale"
    middle = x + width / 2
    text = tag("text", words, x=middle, y=y + 23, class_=f"cell middle {tone}")
    notes = [
        tag("text", note, x=middle, y=y + 36 + _LINE * line, class_=f"note middle {tone}")
        for line, note in enumerate(matrix.notes[row][column] if matrix.notes else ())
    ]
    return tag("g", box, text, notes, class_="cell-box", data_tip=matrix.tips[row][column])


def _short_number(value: float) -> str:
    """Two decimals without the leading zero."""
    if not np.isfinite(value):
        return "\N{EN DASH}"
    text = f"{value:.2f}"
    return {"1.00": "1", "-0.00": ".00"}.get(text, text.replace("0.", ".", 1)).replace("-", "−")


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
