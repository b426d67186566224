"""ROC, risk-coverage and calibration as panels: a few methods in color, the others in gray."""

from collections.abc import Callable

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    FAMILIES,
    Comparison,
    MethodResult,
    color_of,
)
from clew.metrics import calibration_points, risk_coverage_points, roc_points
from clew.pages.figures import decimals
from clew.pages.markup import Html, join, tag
from clew.pages.panels import DASHES, Guide, Line, Panel, draw_panels
from clew.pages.shell import Section

UNIT = (0.0, 1.0)
ALWAYS_SHOWN = ("perplexity", "length", "category")
_BINS, _DOT_LIMIT, _LEAST_COVERAGE = 10, 2, 0.02
Points = tuple[np.ndarray, np.ndarray]


def draw_curves(comparison: Comparison) -> tuple[Panel, ...]:
    """Three panels; empty when the test answers are all of one kind, which no curve can show."""
    if not comparison.test.has_both_classes or not comparison.scored:
        return ()
    return _roc(comparison), _risk_coverage(comparison), _calibration(comparison)


def shown_methods(comparison: Comparison) -> frozenset[str]:
    """The best on validation, the best of each family, and what must be beaten."""
    firsts = [_first_of(comparison, family) for family in FAMILIES if family != "baseline"]
    names = {method.name for method in firsts if method} | {comparison.best.name}
    return frozenset(names | {m.name for m in comparison.scored if m.name in ALWAYS_SHOWN})


def dash_of(comparison: Comparison, method: MethodResult) -> int:
    """Methods of one family share their color: the dashes tell them apart. The lines shown at
    first come first, so that these do not share a dash."""
    shown = shown_methods(comparison)
    kin = [other for other in comparison.scored if other.family == method.family]
    kin.sort(key=lambda other: other.name not in shown)
    return kin.index(method) % len(DASHES)


def _first_of(comparison: Comparison, family: str) -> MethodResult | None:
    """By validation, as the best of all."""
    kin = [method for method in comparison.scored if method.family == family]
    return max(kin, key=lambda method: method.val_auroc or 0.0, default=None)


def _roc(comparison: Comparison) -> Panel:
    return Panel(
        title="ROC",
        x_label="right answers flagged",
        y_label="made-up answers flagged",
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
        title="Risk and coverage",
        x_label="share of answers kept, surest first",
        y_label="made up among them",
        x_range=UNIT,
        y_range=(0.0, top),
        lines=lines,
        guides=(
            Guide(x=UNIT, y=(share, share), label="all answers", label_at=(0.7, share)),
            Guide(
                x=(0.0, *oracle),
                y=(0.0, *(oracle - (1 - share)) / oracle),
                label="perfect",
                label_at=(min(0.8, 1.07 - share), 0.01 * top),
            ),
        ),
    )


def _risk_curve(labels: np.ndarray, scores: np.ndarray) -> Points:
    """From a fiftieth of the answers on: of the first few, each throws the share up and down."""
    coverage, risk = risk_coverage_points(labels, scores)
    late = coverage >= _LEAST_COVERAGE
    return coverage[late], risk[late]


def _calibration(comparison: Comparison) -> Panel:
    return Panel(
        title="Calibration",
        x_label="probability that the method gave",
        y_label="share really made up",
        x_range=UNIT,
        y_range=UNIT,
        lines=_lines(comparison, _calibration_curve, "test_ece", "ECE", has_dots=True),
        guides=(Guide(x=UNIT, y=UNIT, label="as it should be", label_at=(0.66, 0.5)),),
    )


def _calibration_curve(labels: np.ndarray, probabilities: np.ndarray) -> Points:
    """Bins of a few answers swing from 0 to 1 and say nothing; they are left out."""
    given, share, counts = calibration_points(labels, np.clip(probabilities, 0, 1), bins=_BINS)
    full = counts >= min(_DOT_LIMIT + len(labels) // 100, counts.max())
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
        x, y = points(test.labels, test.scores[method.name])
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
    section = Section(
        name="curves",
        short="Curves",
        title="What it catches, what it costs, what it promises",
        lead="What a method gives up for what it catches, what is left when one abstains, and "
        "whether its probabilities mean what they say. Pick methods to put them in color.",
        content=join(_picker(comparison), draw_panels(panels)),
        reading="ROC: nearer to the upper left is better. Risk and coverage: keep only the answers "
        "that the method trusts most, and see how many of those are made up; lower is better "
        "(drawn from 2% of the answers on). Calibration: on the diagonal a probability of 0.7 is "
        "right seven times in ten; above it the method is too trusting.",
        pictures=("roc", "risk_coverage", "calibration"),
    )
    return section.if_there(
        panels,
        "There are no curves: they need test answers of both kinds, right and made up, and the "
        "scores of at least one method.",
    )


def _picker(comparison: Comparison) -> Html:
    """Chips with the line that a method has in the curves."""
    shown = shown_methods(comparison)
    ordered = sorted(comparison.scored, key=lambda method: method.name not in shown)
    chips = [_chip(comparison, method, is_shown=method.name in shown) for method in ordered]
    return tag("div", chips, class_="chips", role="group", aria_label="Methods in color")


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
