"""A picture of a run: losses and the validation's figure by epoch, the best epoch marked."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clew.storage.writing import replace_file

# Apart for people who see few colours, and in print.
_TRAIN, _VALIDATION, _BEST = "#0072B2", "#D55E00", "#555555"
_MARKED_EPOCHS = 40


def draw_curves(
    path: Path,
    history: Sequence[dict[str, Any]],
    *,
    title: str,
    best_epoch: int,
    figure_name: str = "AUROC",
) -> None:
    """Write a PNG. `history` has a row an epoch, as log.csv; `best_epoch` counts from 1;
    `figure_name` is the figure of validation that is shown beside the losses."""
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    figure.suptitle(title)
    loss, reached = figure.subplots(1, 2)
    _draw(loss, history, "train_loss", label="training", color=_TRAIN)
    _draw(loss, history, "val_loss", label="validation", color=_VALIDATION)
    column = f"val_{figure_name.lower()}"
    _draw(reached, history, column, label="validation", color=_VALIDATION)
    for axes, name in ((loss, "loss"), (reached, figure_name)):
        axes.axvline(best_epoch, color=_BEST, linestyle=":", label=f"best epoch ({best_epoch})")
        _label(axes, name, epochs=len(history))
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    replace_file(path, image.getvalue())


def _draw(
    axes: Axes, history: Sequence[dict[str, Any]], name: str, *, label: str, color: str
) -> None:
    points = [(row["epoch"], row[name]) for row in history if row.get(name) is not None]
    if points:
        # Without a mark a run of one epoch would show nothing.
        marker = "o" if len(points) <= _MARKED_EPOCHS else None
        axes.plot(*zip(*points, strict=True), label=label, color=color, marker=marker, markersize=3)


def _label(axes: Axes, name: str, *, epochs: int) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(name)
    axes.set_xlim(0.5, epochs + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="small")
