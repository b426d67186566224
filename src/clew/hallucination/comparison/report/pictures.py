"""The figures as PNGs for slides and papers: the same panels as on the page, with matplotlib."""

import io
import math
import warnings
from collections.abc import Sequence

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clew.hallucination.comparison.report.agreement import draw_agreement
from clew.hallucination.comparison.report.comparison import Comparison
from clew.hallucination.comparison.report.curves import draw_curves
from clew.hallucination.comparison.report.methods import draw_method_rows
from clew.hallucination.comparison.report.questions import draw_categories
from clew.hallucination.comparison.report.sets import draw_left_out, draw_transfer
from clew.hallucination.comparison.report.training import draw_layers, draw_losses
from clew.pages.figures import (
    COLORS,
    DASHES,
    DEEP,
    IntervalRow,
    Line,
    Matrix,
    Panel,
    forest_range,
    short_number,
)

_GRAY, _INK, _DPI = "#D5D8DD", "#23262B", 160
_HEAT = LinearSegmentedColormap.from_list("heat", ["#FFFFFF", COLORS["blue"]])


PICTURES = (
    *("methods", "roc", "risk_coverage", "calibration", "layers", "losses"),
    *("agreement", "categories", "left_out", "transfer"),
)


@rc_context(rcParamsDefault)  # not the settings of a file in the current folder
def draw_pictures(comparison: Comparison) -> dict[str, bytes]:
    """PNGs by name, without figures that have nothing to show."""
    curves = dict(
        zip(("roc", "risk_coverage", "calibration"), draw_curves(comparison), strict=False)
    )
    losses = [panel for pair in draw_losses(comparison) for panel in pair]
    agreement, transfer = draw_agreement(comparison), draw_transfer(comparison)
    left_out = draw_left_out(comparison)
    titles = _titles(comparison)
    drawn: dict[str, Figure | None] = {
        "methods": _forest(draw_method_rows(comparison)),
        **{name: _panels([panel], titles) for name, panel in curves.items()},
        "layers": _panels(draw_layers(comparison), titles),
        "losses": _panels(losses, titles, columns=2),
        "agreement": _matrices([("Rank correlation", agreement)]) if agreement else None,
        "categories": _forest(draw_categories(comparison)),
        "left_out": _matrices([("On sets not trained on", left_out)]) if left_out else None,
        "transfer": _matrices(transfer),
    }
    return {name: _to_png(figure) for name, figure in drawn.items() if figure is not None}


def _to_png(figure: Figure) -> bytes:
    image = io.BytesIO()
    with warnings.catch_warnings():
        # The font lacks many scripts and all emoji; a box in a label needs no warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        FigureCanvasAgg(figure).print_png(image)
    return image.getvalue()


def _titles(comparison: Comparison) -> dict[str, str]:
    return {method.name: _plain(method.title) for method in comparison.methods}


def _plain(text: str) -> str:
    """Escape dollar signs, which would start a formula in matplotlib."""
    return text.replace("$", r"\$")


def _grid(count: int, columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), dpi=_DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def _panels(panels: Sequence[Panel], titles: dict[str, str], columns: int = 3) -> Figure | None:
    if not panels:
        return None
    figure, axes = _grid(len(panels), columns, width=4.6, height=3.9)
    for panel, place in zip(panels, axes, strict=True):
        _draw_panel(place, panel, titles)
    return figure


def _draw_panel(axes: Axes, panel: Panel, titles: dict[str, str]) -> None:
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color=_INK, linewidth=0.7, alpha=0.5, linestyle=(0, (2, 3)))
    for line in panel.visible_lines():
        _draw_line(axes, line, titles)
    for dot in panel.dots:
        axes.plot(dot.x, dot.y, "o", color=COLORS[dot.color], markersize=7)
    for words, color, dash in panel.legend:
        axes.plot([], [], color=COLORS[color], linestyle=_style(dash), label=words)
    axes.set(xlim=panel.x_range, ylim=panel.y_range, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(_plain(panel.title), loc="left", fontsize="medium", fontweight="bold")
    if panel.has_whole_steps:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _clear(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="x-small")


def _draw_line(axes: Axes, line: Line, titles: dict[str, str]) -> None:
    axes.plot(
        line.x,
        line.y,
        color=COLORS[line.color] if line.is_shown else _GRAY,
        linestyle=_style(line.dash) if line.is_shown else "-",
        linewidth=1.0 if line.is_thin or not line.is_shown else 1.8,
        marker="o" if line.has_dots and line.is_shown else None,
        markersize=3,
        label=titles.get(line.key) if line.key and line.is_shown else None,
    )


def _style(dash: int) -> tuple[int, tuple[float, ...] | None]:
    return (0, tuple(float(size) / 2 for size in DASHES[dash].split()) or None)


def _clear(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)


def _forest(rows: Sequence[IntervalRow]) -> Figure | None:
    if not rows:
        return None
    figure, (axes,) = _grid(1, 1, width=8.5, height=1 + 0.3 * len(rows))
    for place, row in enumerate(rows):
        _draw_row(axes, place, row)
    axes.set_yticks(range(len(rows)), [_plain(row.label or row.note) for row in rows])
    for series, color in dict.fromkeys((row.series, row.color) for row in rows):
        axes.plot([], [], "o", color=COLORS[color], label=_plain(series))
    axes.legend(frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1, 1), ncols=4)
    axes.set(xlim=forest_range(rows, 0.5), ylim=(len(rows) - 0.4, -0.6), xlabel="test AUROC")
    axes.axvline(0.5, color=_INK, linewidth=0.8, linestyle=(0, (2, 3)))
    _clear(axes)
    return figure


def _draw_row(axes: Axes, place: int, row: IntervalRow) -> None:
    color = COLORS[row.color]
    if row.interval is not None:
        axes.plot(row.interval, [place, place], color=color, linewidth=2.5, alpha=0.55)
    if row.hollow is not None:
        axes.plot(row.hollow, place, "o", markersize=5, markerfacecolor="white", color=color)
    if row.value is not None:
        axes.plot(row.value, place, "o", markersize=7, color=color)


def _matrices(matrices: Sequence[tuple[str, Matrix]]) -> Figure | None:
    if not matrices:
        return None
    first = matrices[0][1]
    width, height = (2.6 + 0.42 * max(len(names), 2) for names in (first.columns, first.rows))
    figure, axes = _grid(len(matrices), 3, width=width, height=height)
    for (title, matrix), place in zip(matrices, axes, strict=True):
        _draw_matrix(place, title, matrix)
    return figure


def _draw_matrix(axes: Axes, title: str, matrix: Matrix) -> None:
    axes.imshow(matrix.values, cmap=_HEAT, vmin=matrix.low, vmax=matrix.high)
    axes.set_title(_plain(title), loc="left", fontsize="medium", fontweight="bold")
    axes.set_xticks(
        range(len(matrix.columns)),
        [_plain(name) for name in matrix.columns],
        rotation=45,
        ha="right",
        fontsize="small",
    )
    axes.set_yticks(
        range(len(matrix.rows)), [_plain(name) for name in matrix.rows], fontsize="small"
    )
    axes.spines[:].set_visible(False)
    for (row, column), value in _cells(matrix):
        color = "white" if math.isfinite(value) and matrix.depth(value) > DEEP else _INK
        cell = axes.text(column, row, short_number(value), ha="center", va="center", color=color)
        cell.set(fontsize=7, in_layout=False)  # including every cell makes the layout much slower


def _cells(matrix: Matrix) -> list[tuple[tuple[int, int], float]]:
    rows, columns = matrix.values.shape
    return [((r, c), float(matrix.values[r, c])) for r in range(rows) for c in range(columns)]
