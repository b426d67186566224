"""AUROC by layer for the probes, and training curves for the networks, as panels."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
)
from clew.pages.figures import Dot, Line, Panel, draw_panel, draw_panels, padded_range
from clew.pages.markup import Section, tag
from clew.pages.numbers import History, as_dict, as_number, decimals

_SPLITS = (("validation", 0), ("test", 2))
_LOSSES = (("training", "train_loss", 0), ("validation", "val_loss", 1))


def draw_layers(comparison: Comparison) -> tuple[Panel, ...]:
    """A panel per method that was measured by layer; all share one AUROC axis."""
    methods = [method for method in comparison.methods if _by_layer(method)]
    values = [value for method in methods for line in _by_layer(method).values() for value in line]
    low, high = padded_range(values)
    span = (min(low, 0.5), min(high, 1.0))
    return tuple(_layer_panel(method, span) for method in methods)


def _by_layer(method: MethodResult) -> dict[str, np.ndarray]:
    """Split name to AUROC per layer, NaN where it is unknown."""
    raw = as_dict(method.row.get("by_layer"))
    lines = {name: _numbers(raw[name]) for name, _ in _SPLITS if isinstance(raw.get(name), list)}
    return {name: line for name, line in lines.items() if np.isfinite(line).any()}


def _numbers(values: Iterable[Any]) -> np.ndarray:
    return np.array([math.nan if (v := as_number(raw)) is None else v for raw in values])


def _layer_panel(method: MethodResult, span: tuple[float, float]) -> Panel:
    color, lines = color_of(method.family), _by_layer(method)
    count = max(map(len, lines.values()))
    return Panel(
        title=method.title,
        x_label="layer",
        y_label="AUROC",
        x_range=(0.0, max(count - 1.0, 1.0)),
        y_range=span,
        lines=tuple(
            Line(
                x=np.arange(len(lines[name]), dtype=float),
                y=lines[name],
                color=color,
                dash=dash,
                tip=f"{method.title}, {name}",
                has_dots=len(lines[name]) == 1,
            )
            for name, dash in _SPLITS
            if name in lines
        ),
        dots=_chosen_layer(method, lines, color),
        legend=tuple((name, color, dash) for name, dash in _SPLITS if name in lines),
        has_whole_steps=True,
    )


def _chosen_layer(
    method: MethodResult, lines: dict[str, np.ndarray], color: str
) -> tuple[Dot, ...]:
    layer, line = as_number(method.chosen.get("layer")), lines.get("validation")
    if layer is None or line is None or not 0 <= layer < len(line):
        return ()
    value = float(line[int(layer)])
    if not math.isfinite(value):
        return ()
    tip = f"layer {layer:.0f} was chosen: validation AUROC {decimals(value)}"
    return (Dot(x=layer, y=value, color=color, tip=tip),)


def draw_losses(comparison: Comparison) -> tuple[tuple[Panel, Panel], ...]:
    """Two panels per network with a log: its losses, and below its validation AUROC."""
    pairs = [
        (method, seeds)
        for method in comparison.methods
        if (seeds := _with_epochs(comparison.histories.get(method.name, {})))
    ]
    return tuple((_loss_panel(*pair), _auroc_panel(*pair)) for pair in pairs)


def _with_epochs(seeds: dict[str, History]) -> dict[str, History]:
    return {seed: history for seed, history in seeds.items() if history}


def _loss_panel(method: MethodResult, seeds: dict[str, History]) -> Panel:
    color = color_of(method.family)
    lines = tuple(
        _log_line(history, column, color, dash, tip=f"{method.title}, seed {seed}, {name} loss")
        for seed, history in seeds.items()
        for name, column, dash in _LOSSES
    )
    return Panel(
        title=method.title,
        x_label="epoch",
        y_label="loss",
        x_range=_epochs(lines),
        y_range=padded_range(value for line in lines for value in line.y),
        lines=lines,
        legend=tuple((name, color, dash) for name, _, dash in _LOSSES),
        has_whole_steps=True,
    )


def _auroc_panel(method: MethodResult, seeds: dict[str, History]) -> Panel:
    lines = tuple(
        _log_line(
            history,
            "val_auroc",
            color_of(method.family),
            1,
            tip=f"{method.title}, seed {seed}: best validation AUROC {_highest(history)}",
        )
        for seed, history in seeds.items()
    )
    return Panel(
        title="",
        x_label="epoch",
        y_label="validation AUROC",
        x_range=_epochs(lines),
        y_range=padded_range(value for line in lines for value in line.y),
        lines=lines,
        is_low=True,
        has_whole_steps=True,
    )


def _log_line(history: History, column: str, color: str, dash: int, *, tip: str) -> Line:
    epochs = [row.get("epoch") or place for place, row in enumerate(history, start=1)]
    return Line(
        x=np.array(epochs, dtype=float),
        y=_numbers(row.get(column) for row in history),
        color=color,
        dash=dash,
        tip=tip,
        is_thin=True,
        has_dots=len(history) == 1,
    )


def _epochs(lines: Iterable[Line]) -> tuple[float, float]:
    last = max((float(line.x.max()) for line in lines), default=1.0)
    return (1.0, last) if last > 1 else (0.5, 1.5)


def _highest(history: History) -> str:
    known = [value for row in history if (value := row.get("val_auroc")) is not None]
    return decimals(max(known, default=None))


def layers_section(comparison: Comparison) -> Section:
    panels = draw_layers(comparison)
    section = Section(
        name="layers",
        short="Layers",
        title="AUROC by layer",
        lead="For methods that read a single layer: their AUROC at every layer.",
        content=draw_panels(panels),
        reading="The solid line is the validation split, on which the layer with the dot was "
        "chosen; the dotted line is the test split, for comparison only.",
        pictures=("layers",),
    )
    return section.if_there(panels, "No method in this comparison was measured layer by layer.")


def losses_section(comparison: Comparison) -> Section:
    pairs = draw_losses(comparison)
    networks = [tag("div", [draw_panel(panel) for panel in pair]) for pair in pairs]
    section = Section(
        name="training",
        short="Training",
        title="Training curves",
        lead="Loss and validation AUROC of the networks by epoch, one line per seed.",
        content=tag("div", networks, class_="panels"),
        reading="Solid is the training loss, dashed the validation loss. Where the two diverge, "
        "the network overfits; the weights of the best epoch on validation are kept.",
        pictures=("losses",),
    )
    return section.if_there(pairs, "No network wrote a training log.")
