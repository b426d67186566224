"""Curves as panels: drawn here as SVG with the colors of the page's style; reports draw the same
panels as PNGs with matplotlib."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clew.pages.markup import Html, tag

# Distinct for color-blind readers and in grayscale print. style.css has the same, and others
# for dark screens.
COLORS = {
    "gray": "#7C828C",
    "gold": "#C08A14",
    "blue": "#1F5FA8",
    "red": "#B8475A",
    "green": "#3B7D65",
}
DASHES = ("", "6 3", "2 3", "9 3 2 3")
WIDTH, HEIGHT, LOW_HEIGHT = 360, 300, 180
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 40, 42
_LEGEND_STEP = 96


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve. `color` is a name in COLORS, `dash` an index of DASHES. Elements with the same
    `key` are highlighted together. A line that is not shown is pale gray, or hidden where the
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

    def visible_lines(self) -> list[Line]:
        """The lines of a printed figure, in drawing order."""
        kept = [line for line in self.lines if line.is_shown or not self.hides_others]
        return sorted(kept, key=lambda line: line.is_shown)


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


def padded_range(values: Iterable[float], *, share: float = 0.05) -> tuple[float, float]:
    """From the least to the greatest, padded on both sides; (0, 1) without values."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * share or 0.05
    return low - room, high + room


class _Frame:
    """Maps values to picture coordinates."""

    def __init__(self, panel: Panel) -> None:
        self.height = LOW_HEIGHT if panel.is_low else HEIGHT
        self.right, self.bottom = WIDTH - RIGHT, self.height - BOTTOM
        self._x, self._y = panel.x_range, panel.y_range

    def x(self, value: float) -> float:
        low, high = self._x
        return LEFT + (value - low) / (high - low) * (self.right - LEFT)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (value - low) / (high - low) * (self.bottom - TOP)

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


def draw_panel(panel: Panel) -> Html:
    frame = _Frame(panel)
    behind = sorted(panel.lines, key=lambda line: line.is_shown)
    return tag(
        "svg",
        tag("text", panel.title, x=LEFT, y=14, class_="panel-title"),
        _axes(panel, frame),
        tag("g", [_guide(guide, frame) for guide in panel.guides], class_="guides"),
        tag("g", [_line(line, frame) for line in behind], class_="lines"),
        [_dot(dot, frame) for dot in panel.dots],
        _legend(panel, frame),
        viewBox=f"0 0 {WIDTH} {frame.height}",
        class_=_classes("panel", panel.hides_others and "sparse"),
        role="img",
        aria_label=f"{panel.title}: {panel.y_label} over {panel.x_label}",
    )


def _axes(panel: Panel, frame: _Frame) -> Html:
    xs = nice_ticks(*panel.x_range, count=6, is_whole=panel.has_whole_steps)
    ys = nice_ticks(*panel.y_range, count=3 if panel.is_low else 5)
    return tag(
        "g",
        [_level(value, frame) for value in ys],
        [_upright(value, frame) for value in xs],
        tag("line", x1=LEFT, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="base"),
        tag("text", panel.x_label, x=frame.right, y=frame.height - 8, class_="axis end"),
        tag("text", panel.y_label, x=LEFT, y=TOP - 9, class_="axis"),
        class_="axes",
    )


def _level(value: float, frame: _Frame) -> Html:
    y = frame.y(value)
    grid = tag("line", x1=LEFT, x2=frame.right, y1=y, y2=y, class_="grid")
    return Html(grid + tag("text", f"{value:g}", x=LEFT - 6, y=y + 3.5, class_="tick end"))


def _upright(value: float, frame: _Frame) -> Html:
    x = frame.x(value)
    return tag("text", f"{value:g}", x=x, y=frame.bottom + 15, class_="tick middle")


def _guide(guide: Guide, frame: _Frame) -> Html:
    x, y = guide.label_at
    words = tag("text", guide.label, x=frame.x(x), y=frame.y(y) - 4, class_="guide-label")
    path = tag("path", d=frame.path(guide.x, guide.y), class_="guide")
    return Html(path + words) if guide.label else path


def _line(line: Line, frame: _Frame) -> Html:
    """Draw a curve. The wide path below it is invisible: it is the target for the mouse or a
    finger."""
    path = frame.path(line.x, line.y)
    dots = zip(line.x, line.y, strict=True) if line.has_dots else ()
    return tag(
        "g",
        tag("path", d=path, class_="hit"),
        tag("path", d=path, class_="stroke", stroke_dasharray=DASHES[line.dash] or None),
        [tag("circle", cx=frame.x(x), cy=frame.y(y), r=2.6) for x, y in dots],
        class_=_classes("curve", line.color, line.is_shown and "shown", line.is_thin and "thin"),
        data_key=line.key,
        data_tip=line.tip,
    )


def _classes(*names: str | bool) -> str:
    return " ".join(name for name in names if isinstance(name, str))


def _dot(dot: Dot, frame: _Frame) -> Html:
    return tag(
        "circle",
        cx=frame.x(dot.x),
        cy=frame.y(dot.y),
        r=5,
        class_=f"mark {dot.color}",
        data_tip=dot.tip,
    )


def _legend(panel: Panel, frame: _Frame) -> Html:
    start = frame.right - _LEGEND_STEP * len(panel.legend) + 14
    return tag(
        "g",
        [
            _key(words, color, dash, x=start + _LEGEND_STEP * place)
            for place, (words, color, dash) in enumerate(panel.legend)
        ],
        class_="legend",
    )


def _key(words: str, color: str, dash: int, *, x: float) -> Html:
    y = TOP - 12.5
    stroke = tag(
        "line", x1=x, x2=x + 20, y1=y, y2=y, stroke_dasharray=DASHES[dash] or None, class_="stroke"
    )
    text = tag("text", words, x=x + 25, y=y + 3.5, class_="axis")
    return tag("g", stroke, text, class_=f"curve shown {color}")


def draw_panels(panels: Sequence[Panel]) -> Html:
    return tag("div", [draw_panel(panel) for panel in panels], class_="panels")
