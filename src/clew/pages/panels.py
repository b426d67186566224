"""What is drawn, told once: the page draws it as SVG, the pictures beside it with matplotlib."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

# Colours by name: one a family of methods, and two for the splits. They stay apart for people who
# see few colours, and in grey print. style.css has the same, and others for dark screens.
COLOURS = {
    "baseline": "#7C828C",
    "no-training": "#C08A14",
    "probe": "#1F5FA8",
    "network": "#B8475A",
    "other": "#3B7D65",
}
DASHES = ("", "6 3", "2 3", "9 3 2 3")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve. `colour` is a name of COLOURS, `dash` a place in DASHES. Lines of a method that is
    not shown stand in pale grey behind the others until it is picked."""

    x: np.ndarray
    y: np.ndarray
    colour: str
    tip: str
    dash: int = 0
    method: str | None = None
    is_shown: bool = True
    has_dots: bool = False
    is_thin: bool = False


@dataclass(frozen=True, kw_only=True)
class Dot:
    x: float
    y: float
    colour: str
    tip: str


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A thin line for the eye, with a word beside its point of the given place."""

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
    legend: tuple[tuple[str, str, int], ...] = ()  # words, colour, dash
    is_low: bool = False
    has_whole_steps: bool = False  # epochs and layers are counted, not measured


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """A value with its interval, as one line of a forest plot; what is missing is not drawn."""

    label: str
    colour: str
    value: float | None
    interval: tuple[float, float] | None
    text: str
    tip: str
    method: str | None = None
    hollow: float | None = None
    is_marked: bool = False
    note: str = ""
    series: str = ""  # what its colour means


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A heat map; `values` may be NaN where there is none. `low` is pale, `high` is deep."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    tips: tuple[tuple[str, ...], ...]
    low: float
    high: float

    def depth(self, value: float) -> float:
        """How deep the colour is: 0 to 1."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def colour_of(family: str) -> str:
    """The colour's name, which is also the class in the page."""
    slug = family.replace(" ", "-")
    return slug if slug in COLOURS else "other"


def nice_ticks(low: float, high: float, *, count: int = 5, is_whole: bool = False) -> list[float]:
    """Round numbers within the range, about `count` of them."""
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
    """From the least to the greatest, with a little room on both sides; (0, 1) of nothing."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * share or 0.05
    return low - room, high + room
