"""Draws panels of curves as SVG. Colours come from the page's style, so that they follow it."""

from collections.abc import Iterable

import numpy as np

from clew.pages.markup import Html, tag
from clew.pages.panels import DASHES, Dot, Guide, Line, Panel, nice_ticks

WIDTH, HEIGHT, LOW_HEIGHT = 360, 300, 180
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 40, 42
_LEGEND_STEP = 96


class _Frame:
    """Where values lie in the picture."""

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
        """Breaks where a value is no number."""
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
        class_="panel",
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
    """The broad path below is not seen: it is what a finger or a mouse can hit."""
    path = frame.path(line.x, line.y)
    dots = zip(line.x, line.y, strict=True) if line.has_dots else ()
    return tag(
        "g",
        tag("path", d=path, class_="hit"),
        tag("path", d=path, class_="stroke", stroke_dasharray=DASHES[line.dash] or None),
        [tag("circle", cx=frame.x(x), cy=frame.y(y), r=2.6) for x, y in dots],
        class_=_classes("curve", line.colour, line.is_shown and "shown", line.is_thin and "thin"),
        data_method=line.method,
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
        class_=f"mark {dot.colour}",
        data_tip=dot.tip,
    )


def _legend(panel: Panel, frame: _Frame) -> Html:
    start = frame.right - _LEGEND_STEP * len(panel.legend) + 14
    return tag(
        "g",
        [
            _key(words, colour, dash, x=start + _LEGEND_STEP * place)
            for place, (words, colour, dash) in enumerate(panel.legend)
        ],
        class_="legend",
    )


def _key(words: str, colour: str, dash: int, *, x: float) -> Html:
    y = TOP - 12.5
    stroke = tag(
        "line", x1=x, x2=x + 20, y1=y, y2=y, stroke_dasharray=DASHES[dash] or None, class_="stroke"
    )
    text = tag("text", words, x=x + 25, y=y + 3.5, class_="axis")
    return tag("g", stroke, text, class_=f"curve shown {colour}")
