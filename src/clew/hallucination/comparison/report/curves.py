"""ROC, risk-coverage and calibration as panels: the best method and perplexity in color, the
others in gray or hidden until they are picked."""

from collections.abc import Callable

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    Comparison,
    MethodResult,
    color_of,
)
from clew.metrics import calibration_points, risk_coverage_points, roc_points
from clew.pages.figures import DASHES, Guide, Line, Panel, draw_panels
from clew.pages.markup import Html, Section, join, tag
from clew.pages.numbers import decimals

UNIT = (0.0, 1.0)
REFERENCE = "perplexity"  # the method that every other one is shown beside
_MOST_BINS, _FEWEST_BINS, _ANSWERS_PER_BIN, _LEAST_ANSWERS = 10, 4, 15, 5
_LEAST_COVERAGE = 0.02
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
        x_label="false positive rate (correct answers flagged)",
        y_label="true positive rate (hallucinated answers flagged)",
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
    section = Section(
        name="curves",
        short="Curves",
        title="ROC, risk-coverage and calibration",
        lead="The trade-off at every threshold, the answers that remain when risky ones are "
        "rejected, and whether a risk can be read as a probability. Click a method to add "
        "or remove its curves.",
        content=join(_picker(comparison), draw_panels(panels)),
        reading="ROC: closer to the upper left is better. Risk-coverage: of the answers with "
        "the lowest risk, the share that is hallucinated; lower is better (drawn from a "
        "coverage of 2%). Calibration: on the diagonal, 70% of the answers with a risk "
        "of 0.7 are hallucinated; above it, the method underestimates the risk. Bins "
        f"with fewer than {_LEAST_ANSWERS} answers are not drawn.{_tell_pooled(comparison)}",
        pictures=("roc", "risk_coverage", "calibration"),
    )
    return section.if_there(
        panels,
        "Curves require both correct and hallucinated test answers, and the risks of at least one "
        "method.",
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


def _tell_pooled(comparison: Comparison) -> str:
    if not comparison.raw.get("leave_one_out"):
        return ""
    return " The curves are over all sets together, so their area differs from the mean AUROC."
