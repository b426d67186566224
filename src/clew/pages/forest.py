"""Draws values with intervals, one row each. Rows are HTML with a narrow SVG in percentages: the
text keeps its size on a phone."""

from collections.abc import Sequence
from dataclasses import dataclass

from clew.pages.markup import Html, tag
from clew.pages.panels import nice_ticks

_MIDDLE = "50%"


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
    """Draw a forest plot. `reference` is the chance level, `words` label the axis. With
    `is_grouped`, every marked row starts a group."""
    low, high = forest_range(rows, reference)
    ticks = nice_ticks(low, high, count=6)
    places = [(tick, _place(tick, low, high)) for tick in ticks]
    return tag(
        "div",
        [_row(row, low, high, [place for _, place in places], reference) for row in rows],
        _axis(places, words),
        class_="forest grouped" if is_grouped else "forest",
    )


def forest_range(rows: Sequence[IntervalRow], reference: float) -> tuple[float, float]:
    """The range of the axis: covers every interval and the reference, in steps of 0.05."""
    values = [reference, *(value for row in rows for value in _values(row))]
    low, high = min(values), max(values)
    return max(int(low * 20 - 0.5) / 20, 0.0), min(int(high * 20 + 1.5) / 20, 1.0)


def _values(row: IntervalRow) -> list[float]:
    return [value for value in (row.value, row.hollow, *(row.interval or ())) if value is not None]


def _place(value: float, low: float, high: float) -> float:
    return 2 + 96 * (value - low) / (high - low)


def _row(
    row: IntervalRow, low: float, high: float, grid: Sequence[float], reference: float
) -> Html:
    return tag(
        "div",
        _label(row),
        _track(row, low, high, grid, reference),
        tag("div", row.text, class_="value"),
        class_=f"forest-row {row.color}{' best' if row.is_marked else ''}",
        data_key=row.key,
        data_tip=row.tip,
    )


def _label(row: IntervalRow) -> Html:
    note = tag("small", row.note, class_="note") if row.note else None
    return tag("div", tag("bdi", row.label), note, class_="label")


def _track(
    row: IntervalRow, low: float, high: float, grid: Sequence[float], reference: float
) -> Html:
    def at(value: float) -> str:
        return f"{_place(value, low, high):.2f}%"

    lines = [_upright(f"{place:.2f}%", "grid") for place in grid]
    marks = []
    if row.interval is not None:
        first, last = map(at, row.interval)
        marks.append(tag("line", x1=first, x2=last, y1=_MIDDLE, y2=_MIDDLE, class_="span"))
    if row.hollow is not None:
        marks.append(tag("circle", cx=at(row.hollow), cy=_MIDDLE, r=3.5, class_="hollow"))
    if row.value is not None:
        marks.append(tag("circle", cx=at(row.value), cy=_MIDDLE, r=5, class_="point"))
    return tag("svg", lines, _upright(at(reference), "reference"), marks, aria_hidden="true")


def _upright(place: str, name: str) -> Html:
    return tag("line", x1=place, x2=place, y1="0", y2="100%", class_=name)


def _axis(places: Sequence[tuple[float, float]], words: str) -> Html:
    ticks = [
        tag("span", f"{tick:g}", style=f"left:{place:.2f}%", class_="forest-tick")
        for tick, place in places
    ]
    return tag(
        "div",
        tag("div", class_="label"),
        tag("div", ticks, class_="ticks"),
        tag("div", words, class_="value muted"),
        class_="forest-row axis-row",
        aria_hidden="true",
    )
