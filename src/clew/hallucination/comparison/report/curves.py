"""Curves as panels: ROC, risk-coverage and calibration (the best method and perplexity in color,
the others in gray or hidden until they are picked), AUROC by layer, and the networks' training."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
    report_section,
)
from clew.metrics.calibration import calibration_points
from clew.metrics.measures import risk_coverage_points, roc_points
from clew.pages.figures import (
    DASHES,
    Dot,
    Guide,
    Line,
    Panel,
    draw_panel,
    draw_panels,
    in_rows,
    padded_range,
)
from clew.pages.markup import Html, Section, join, tag
from clew.pages.numbers import History, as_dict, as_number, decimals

UNIT = (0.0, 1.0)
REFERENCE = "perplexity"  # the method that every other one is shown beside
_MOST_BINS, _FEWEST_BINS, _ANSWERS_PER_BIN, _LEAST_ANSWERS = 10, 4, 15, 5
_LEAST_COVERAGE = 0.02
_NAMES = ("roc", "risk_coverage", "calibration")
_SPLITS = (("validation", 0), ("test", 2))
Curves = tuple[tuple[str, str, int], ...]  # words, column of the log, dash
_LOSSES: Curves = ((", training loss", "train_loss", 0), (", validation loss", "val_loss", 1))
_AUROC: Curves = ((": best validation AUROC {best}", "val_auroc", 1),)
Points = tuple[np.ndarray, np.ndarray]


def draw_curves(comparison: Comparison) -> tuple[Panel, ...]:
    """Three panels; none when the test answers all have one label, which no curve can show."""
    if not comparison.test.has_both_classes or not comparison.scored:
        return ()
    return _roc(comparison), _risk_coverage(comparison), _calibration(comparison)


def shown_methods(comparison: Comparison) -> frozenset[str]:
    """The methods shown at first: the best on validation, and perplexity. More lines would be a
    tangle."""
    return frozenset({comparison.best.name, REFERENCE})


def dash_of(comparison: Comparison, method: MethodResult) -> int:
    """The dash pattern of a method: methods of one family share a color, and the dashes tell them
    apart. The lines shown at first come first, so that they do not share a dash."""
    shown = shown_methods(comparison)
    kin = [other for other in comparison.scored if other.family == method.family]
    kin.sort(key=lambda other: other.name not in shown)
    return kin.index(method) % len(DASHES)


def _roc(comparison: Comparison) -> Panel:
    return Panel(
        title="ROC",
        x_label="false positive rate (correct answers with a high risk)",
        y_label="true positive rate (hallucinated answers with a high risk)",
        x_range=UNIT,
        y_range=UNIT,
        lines=_lines(comparison, roc_points, "test_auroc", "AUROC"),
        guides=(Guide(x=UNIT, y=UNIT, label="chance", label_at=(0.7, 0.56)),),
    )


def _risk_coverage(comparison: Comparison) -> Panel:
    share = float(comparison.test.labels.mean())
    oracle = np.linspace(1 - share, 1, 40)
    lines = _lines(comparison, _risk_curve, "test_aurc", "area")
    top = min(1.0, 1.1 * max(0.1, share, *(float(line.y.max()) for line in lines)))
    return Panel(
        title="Risk-coverage",
        x_label="coverage (share of answers kept, lowest risk first)",
        y_label="share hallucinated among those kept",
        x_range=UNIT,
        y_range=(0.0, top),
        lines=lines,
        guides=(
            Guide(x=UNIT, y=(share, share), label="all answers", label_at=(0.02, share)),
            Guide(
                x=(0.0, *oracle),
                y=(0.0, *(oracle - (1 - share)) / oracle),
                label="perfect",
                label_at=(min(0.8, 1.07 - share), 0.01 * top),
            ),
        ),
    )


def _risk_curve(labels: np.ndarray, scores: np.ndarray) -> Points:
    """The risk-coverage curve, starting at 2% of the answers: below that, the risk jumps with every
    answer."""
    coverage, risk = risk_coverage_points(labels, scores)
    late = coverage >= _LEAST_COVERAGE
    return coverage[late], risk[late]


def _calibration(comparison: Comparison) -> Panel:
    return Panel(
        title="Calibration",
        x_label="predicted risk",
        y_label="share hallucinated",
        x_range=UNIT,
        y_range=UNIT,
        lines=_lines(
            comparison, _calibration_curve, "test_ece", "calibration error", has_dots=True
        ),
        guides=(Guide(x=UNIT, y=UNIT, label="perfect", label_at=(0.78, 0.66)),),
        hides_others=True,
    )


def _calibration_curve(labels: np.ndarray, probabilities: np.ndarray) -> Points:
    """The calibration curve. Fewer answers get fewer bins, and bins with too few answers, which are
    noise, are excluded."""
    bins = min(max(len(labels) // _ANSWERS_PER_BIN, _FEWEST_BINS), _MOST_BINS)
    given, share, counts = calibration_points(labels, np.clip(probabilities, 0, 1), bins=bins)
    full = counts >= min(_LEAST_ANSWERS, counts.max())
    return given[full], share[full]


def _lines(
    comparison: Comparison,
    points: Callable[[np.ndarray, np.ndarray], Points],
    figure: str,
    words: str,
    *,
    has_dots: bool = False,
) -> tuple[Line, ...]:
    shown, test = shown_methods(comparison), comparison.test
    lines = []
    for method in comparison.scored:
        x, y = points(test.labels, test.risks[method.name])
        lines.append(
            Line(
                x=x,
                y=y,
                color=color_of(method.family),
                dash=dash_of(comparison, method),
                key=method.name,
                tip=f"{method.title}: {words} {decimals(method.figure(figure))}",
                is_shown=method.name in shown,
                has_dots=has_dots,
            )
        )
    return tuple(lines)


def curves_section(comparison: Comparison) -> Section:
    panels = draw_curves(comparison)
    titles = {method.name: method.title for method in comparison.methods}
    printed = {
        name: [[draw_panel(panel, titles)]] for name, panel in zip(_NAMES, panels, strict=False)
    }
    pooled = " The curves are over all sets together, so their area differs from the mean AUROC."
    return report_section(
        "curves",
        join(_picker(comparison), draw_panels(panels)),
        figure=panels,
        pictures=printed,
        least=_LEAST_ANSWERS,
        pooled=pooled if comparison.raw.get("leave_one_out") else "",
    )


def _picker(comparison: Comparison) -> Html:
    """A chip per method, with its line as in the curves."""
    shown = shown_methods(comparison)
    ordered = sorted(comparison.scored, key=lambda method: method.name not in shown)
    chips = [_chip(comparison, method, is_shown=method.name in shown) for method in ordered]
    return tag("div", chips, class_="chips", role="group", aria_label="Methods shown")


def _chip(comparison: Comparison, method: MethodResult, *, is_shown: bool) -> Html:
    dashes = DASHES[dash_of(comparison, method)] or None
    line = tag("line", x1=0, x2=24, y1=5, y2=5, stroke_dasharray=dashes)
    return tag(
        "button",
        tag("svg", line, width=24, height=10, aria_hidden="true"),
        tag("bdi", method.title),
        tag("small", decimals(method.test_auroc)),
        type="button",
        class_=f"chip {color_of(method.family)}",
        aria_pressed="true" if is_shown else "false",
        data_key=method.name,
    )


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


def _draw_losses(comparison: Comparison) -> list[Html]:
    """Two panels per network with a log: its losses, and below its validation AUROC."""
    found = []
    for method in comparison.methods:
        logs = comparison.histories.get(method.name, {})
        seeds = {seed: history for seed, history in logs.items() if history}
        if seeds:
            losses = _epoch_panel(method, seeds, _LOSSES, "loss")
            color = color_of(method.family)
            legend = (("training", color, 0), ("validation", color, 1))
            losses = replace(losses, title=method.title, legend=legend)
            aurocs = replace(_epoch_panel(method, seeds, _AUROC, "validation AUROC"), is_low=True)
            found.append(tag("div", draw_panel(losses), draw_panel(aurocs)))
    return found


def _epoch_panel(
    method: MethodResult, seeds: dict[str, History], curves: Curves, y_label: str
) -> Panel:
    lines = []
    for seed, history in seeds.items():
        epochs = [row.get("epoch") or place for place, row in enumerate(history, start=1)]
        known = [value for row in history if (value := row.get("val_auroc")) is not None]
        best = decimals(max(known, default=None))
        for words, column, dash in curves:
            line = Line(
                x=np.array(epochs, dtype=float),
                y=_numbers(row.get(column) for row in history),
                color=color_of(method.family),
                dash=dash,
                tip=f"{method.title}, seed {seed}{words.format(best=best)}",
                is_thin=True,
                has_dots=len(history) == 1,
            )
            lines.append(line)
    last = max(float(line.x.max()) for line in lines)
    return Panel(
        title="",
        x_label="epoch",
        y_label=y_label,
        x_range=(1.0, last) if last > 1 else (0.5, 1.5),
        y_range=padded_range(value for line in lines for value in line.y),
        lines=tuple(lines),
        has_whole_steps=True,
    )


def layers_section(comparison: Comparison) -> Section:
    panels = draw_layers(comparison)
    printed = in_rows([draw_panel(panel) for panel in panels], 3)
    content = draw_panels(panels)
    return report_section("layers", content, figure=panels, pictures={"layers": printed})


def losses_section(comparison: Comparison) -> Section:
    networks = _draw_losses(comparison)
    content = tag("div", networks, class_="panels")
    pictures = {"losses": in_rows(networks, 4)}
    return report_section("training", content, figure=networks, pictures=pictures)
