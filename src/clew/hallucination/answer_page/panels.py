"""The panels of the PNG, each drawn into its own axes, and texts that the font can draw."""

import functools
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Ellipse, PathPatch, Rectangle
from matplotlib.path import Path as Curve

from clew.hallucination.answer_page.cards import (
    describe_probabilities,
    first_answer_row,
    percent_text,
    row_text,
    short_rows,
)
from clew.hallucination.answer_page.heads import MOST_DEVIATIONS, deviations
from clew.hallucination.answer_page.picture import Latent, Picture, ShownAnswer
from clew.hallucination.answer_page.plots import choose_labels
from clew.hallucination.traces.token_texts import shorten, visible_text

INK, QUIET, FAINT, PROMPT = "#1f2a33", "#66727c", "#dde2e6", "#9aa5ae"
_COLORS = {"correct": "#2a6f97", "hallucinated": "#c8553d", None: "#5b6770"}
_MISSING = "\u25af"
_MOST_WRAPPED = 8
_ROWS, _ROW_HEIGHT = 120, 0.152
_LINE_HEIGHT, _MOST_LINES = 0.5, 12
# width of a letter and minimum width in inches; maximum number of letters
_LETTER, _LEAST, _LONGEST = 0.074, 0.36, 24
COLUMN_WIDTH = 5.35  # inches
_TITLE = 84  # maximum number of letters
_DEEP = LinearSegmentedColormap.from_list("depth", ["#ffffff", "#2d3e4a"])
_UNLIKE = LinearSegmentedColormap.from_list("unlike", ["#2b8a6f", "#ffffff", "#6a4c93"])
_DOUBT = LinearSegmentedColormap.from_list("doubt", ["#e8c468", "#ffffff"])


def color_of(answer: ShownAnswer) -> str:
    return color_of_kind(answer.kind)


def color_of_kind(kind: str | None) -> str:
    return _COLORS[kind]


def drawable(text: str) -> str:
    """Replace characters that the font lacks with a box. matplotlib would draw one too, but warn
    about each."""
    known = _known_letters()
    return "".join(
        letter if letter == "\n" or ord(letter) in known else _MISSING for letter in text
    )


def wrap(text: str, width: int) -> str:
    """Lines of at most `width` letters; very long texts are cut."""
    lines = textwrap.wrap(text, width) or [""]
    if len(lines) > _MOST_WRAPPED:
        lines = [*lines[:_MOST_WRAPPED], "..."]
    return "\n".join(lines)


@functools.cache
def _known_letters() -> frozenset[int]:
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties()))
    return frozenset(font.get_charmap())


@dataclass(frozen=True, kw_only=True)
class _Chip:
    """A token in the lines of the answer; sizes in inches."""

    text: str
    chance: float
    line: int
    left: float
    width: float


def probabilities_height(answer: ShownAnswer) -> float:
    return _LINE_HEIGHT * (1 + _lay_chips(answer)[-1].line)


def draw_probabilities(axes: Axes, answer: ShownAnswer) -> None:
    """Token by token, as on the page: the text, a bar and the probability."""
    chips = _lay_chips(answer)
    more = len(answer.answer_texts) - len(chips)
    rest = f" (without the last {more:,} tokens)" if more else ""
    _title(axes, f"Token probabilities{rest}. {describe_probabilities(answer)}")
    # In inches: the axes may be taller than this answer needs.
    axes.set(xlim=(0, COLUMN_WIDTH), ylim=(_inches(axes), 0))
    axes.axis("off")
    for chip in chips:
        _draw_chip(axes, chip)


def _lay_chips(answer: ShownAnswer) -> list[_Chip]:
    """Lay out the tokens line by line while there is room."""
    assert answer.logprobs is not None
    chips: list[_Chip] = []
    line, left = 0, 0.0
    for text, chance in zip(answer.answer_texts, np.exp(answer.logprobs).tolist(), strict=True):
        words = drawable(shorten(visible_text(text), _LONGEST))
        width = max(_LEAST, 0.12 + _LETTER * len(words))
        if left + width > COLUMN_WIDTH:
            line, left = line + 1, 0.0
        if line == _MOST_LINES:
            break
        chips.append(_Chip(text=words, chance=chance, line=line, left=left, width=width))
        left += width + 0.04
    return chips


def _draw_chip(axes: Axes, chip: _Chip) -> None:
    top, height = chip.line * _LINE_HEIGHT + 0.03, _LINE_HEIGHT - 0.06
    ground = _DOUBT(chip.chance)
    axes.add_patch(
        Rectangle((chip.left, top), chip.width, height, facecolor=ground, edgecolor=FAINT)
    )
    x, room = chip.left + 0.05, chip.width - 0.1
    axes.add_patch(Rectangle((x, top + 0.225), room * chip.chance, 0.04, color=INK, lw=0))
    axes.text(x, top + 0.125, chip.text, size=7.5, color=INK, va="center", parse_math=False)
    axes.text(x, top + 0.35, percent_text(chip.chance), size=6.5, color=QUIET, va="center")


def arcs_height(answer: ShownAnswer) -> float:
    assert answer.graph is not None
    return _ROW_HEIGHT * len(short_rows(answer, _ROWS))


def draw_arcs(axes: Axes, answer: ShownAnswer, layer: int) -> None:
    """As on the page, without the arcs to the first token and those within the prompt."""
    graph = answer.graph
    assert graph is not None
    rows, share = short_rows(answer, _ROWS), graph.shares(layer)
    start = first_answer_row(answer, rows)
    _title(
        axes,
        f"Attention of the answer in layer {layer} (not drawn: {share.first:.0%} on token 0)",
    )
    # The axes may be taller than this answer needs: the rows keep their height.
    axes.set(xlim=(-1, 0.75), ylim=(_inches(axes) / _ROW_HEIGHT - 0.5, -0.5))
    axes.axis("off")
    edges = graph.edges(layer, rows)
    received = np.zeros(len(rows))
    flat = zip(edges.source.tolist(), edges.target.tolist(), edges.weight.tolist(), strict=True)
    for source, target, weight in reversed(list(flat)):
        if source > 0 and (target >= start or start == len(rows)):
            received[source] += weight
            color = color_of(answer) if source < start else INK
            axes.add_patch(_arc(source, target, weight, len(rows), color))
    _draw_rows(axes, answer, received / max(1, len(rows) - start), _ROWS)


def _arc(source: int, target: int, weight: float, rows: int, color: str) -> PathPatch:
    bow = -1.28 * ((target - source) / max(1, rows - 1)) ** 0.62
    points = [(0, target), (bow, target), (bow, source), (0, source)]
    curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
    opacity = min(0.9, 0.06 + 4.5 * weight)
    return PathPatch(curve, fill=False, edgecolor=color, lw=0.4 + 6 * weight, alpha=opacity)


def _draw_rows(axes: Axes, answer: ShownAnswer, received: np.ndarray, limit: int) -> None:
    rows = short_rows(answer, limit)
    start = first_answer_row(answer, rows)
    colors = [color_of(answer) if row >= start else PROMPT for row in range(len(rows))]
    sizes = np.minimum(60, 3 + 500 * received)
    axes.scatter(np.zeros(len(rows)), np.arange(len(rows)), s=sizes, c=colors, zorder=3)
    for row in range(len(rows)):
        is_answer = row >= start
        axes.text(
            0.05,
            row,
            drawable(row_text(answer, rows, row)),
            size=8,
            va="center_baseline",
            color=INK if is_answer else QUIET,
            weight="bold" if is_answer else "normal",
            parse_math=False,
        )
    if 0 < start < len(rows):
        axes.plot([0.02, 0.75], [start - 0.5] * 2, color=FAINT, lw=1)
        axes.text(0.75, start - 1, "prompt", size=7, color=QUIET, ha="right", va="center")
        axes.text(0.75, start, "answer", size=7, color=QUIET, ha="right", va="center")


def draw_paths(axes: Axes, picture: Picture, latent: Latent) -> None:
    _title(axes, "Hidden state of the last token across layers")
    for mean in latent.means:
        color, name = color_of_kind(mean.kind), mean.kind or "all"
        for center, spread in zip(mean.center, mean.spread, strict=True):
            axes.add_patch(Ellipse(center, *(2 * spread), color=color, alpha=0.05, lw=0))
        words = f"{name} (mean of {mean.answers:,})"
        axes.plot(*mean.center.T, color=color, lw=1.2, ls="--", alpha=0.7, label=words)
    known = [path for path in latent.paths if path is not None]
    for place, path in enumerate(latent.paths):
        if path is not None:
            _draw_own(axes, path[:, 0], path[:, 1], picture, place)
    places = axes.transData.transform(known[0]).tolist()
    for layer in choose_labels(places):
        point = known[0][layer]
        axes.annotate(str(layer), point, (5, 4), textcoords="offset points", size=7, color=QUIET)
    first, second = latent.explained
    _frame(axes, f"component 1 ({first:.0%} of the variance)", f"component 2 ({second:.0%})")
    axes.set(xticks=[], yticks=[])


def draw_places(axes: Axes, picture: Picture, latent: Latent) -> None:
    _title(axes, "Output of a linear probe at every layer")
    for band in latent.bands:
        low, middle, high = band.quartiles
        color = color_of_kind(band.kind)
        words = f"{band.kind} (median of {band.answers:,})"
        axes.fill_between(range(len(low)), low, high, color=color, alpha=0.14, lw=0)
        axes.plot(middle, color=color, lw=1.2, ls="--", alpha=0.7, label=words)
    for place, values in enumerate(latent.places):
        if values is not None:
            _draw_own(axes, np.arange(len(values)), values, picture, place)
    axes.axvline(picture.layer, color=INK, lw=0.7, ls=":")
    axes.set_yticks([-1, 0, 1], ["correct −1", "0", "hallucinated +1"])
    axes.grid(axis="y", color=FAINT)
    _frame(axes, "layer", "")


def _draw_own(axes: Axes, x: np.ndarray, y: np.ndarray, picture: Picture, place: int) -> None:
    """The second answer has hollow dots: both may have the same label and color."""
    answer, layer = picture.answers[place], picture.layer
    color = color_of(answer)
    style: Any = {"color": color, "marker": "o", "mfc": "white" if place else color}
    axes.plot(x, y, lw=1.7, ms=3.2, mew=0.9, label=f"answer {answer.number}", **style)
    axes.plot(x[layer], y[layer], ms=8, **(style | {"mec": INK}), zorder=4)


def draw_heads(axes: Axes, answer: ShownAnswer, picture: Picture, *, against_others: bool) -> None:
    values = deviations(answer, picture) if against_others else answer.lookback
    if values is None:
        axes.axis("off")
        return
    title = "Lookback ratio of each head (1: all on the prompt)"
    colors, low, high = _DEEP, 0.0, 1.0
    if against_others:
        title = "Difference from the average answer, in standard deviations"
        colors, low, high = _UNLIKE, -MOST_DEVIATIONS, MOST_DEVIATIONS
    _title(axes, title)
    image = axes.imshow(values.T, cmap=colors, vmin=low, vmax=high, aspect="auto")
    axes.axvline(picture.layer - 0.5, color=INK, lw=0.8)
    axes.axvline(picture.layer + 0.5, color=INK, lw=0.8)
    axes.set(xlabel="layer", ylabel="head")
    axes.tick_params(labelsize=7, colors=QUIET)
    bar = axes.inset_axes((1.012, 0.0, 0.015, 1.0))
    axes.figure.colorbar(image, cax=bar).ax.tick_params(labelsize=7, colors=QUIET)


def _inches(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return float(axes.get_position().height * figure.get_size_inches()[1])


def _title(axes: Axes, words: str) -> None:
    axes.set_title(
        drawable(shorten(words, _TITLE)),
        loc="left",
        size=9,
        weight="bold",
        color=INK,
        parse_math=False,
    )


def _frame(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, size=8, color=QUIET)
    axes.set_ylabel(y, size=8, color=QUIET)
    axes.tick_params(labelsize=7, colors=QUIET)
    for side in axes.spines.values():
        side.set_color(FAINT)
    axes.legend(frameon=False, fontsize=7, ncols=2, loc="best")
