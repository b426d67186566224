"""The sections on the methods: how they rank, their figures, curves, layers and training."""

from collections.abc import Sequence

from clew.hallucination.comparison.report.comparison import Comparison, MethodResult
from clew.hallucination.comparison.report.curves import dash_of, draw_curves, shown_methods
from clew.hallucination.comparison.report.overview import draw_family_key, draw_method_rows
from clew.hallucination.comparison.report.table import draw_table
from clew.hallucination.comparison.report.training import draw_layers, draw_losses
from clew.pages.forest import draw_forest
from clew.pages.markup import Html, join, tag
from clew.pages.panels import DASHES, Panel, colour_of
from clew.pages.section import Section
from clew.pages.svg import draw_panel
from clew.pages.wording import decimals

CHANCE = 0.5


def rank_section(comparison: Comparison) -> Section:
    rows = draw_method_rows(comparison)
    forest = draw_forest(rows, reference=CHANCE, words="test AUROC")
    return Section(
        name="methods",
        short="Methods",
        title="Every method on one axis",
        lead="How well each method ranks made-up answers above right ones on the test split.",
        content=join(draw_family_key(comparison), forest),
        reading="A dot is the test AUROC, the bar its 95% bootstrap interval, the hollow dot the "
        "validation AUROC, on which the best was chosen. 0.5 is chance, 1 is perfect. Length and "
        "category see nothing of the model: what they reach is not detection.",
        pictures=("methods",),
    )


def table_section(comparison: Comparison) -> Section:
    return Section(
        name="table",
        short="Table",
        title="All figures",
        lead="A click on a column's name sorts by it; the best test figure of a column is bold.",
        content=draw_table(comparison),
        reading="F1 and accuracy are at the threshold that was best on validation. ECE and AURC "
        "are better when less. Differences are paired bootstraps; those in grey may be chance "
        "(p of 0.05 or more). With seeds, the row is the seed of median validation AUROC; the "
        "mean and deviation over all seeds stand beside it.",
    )


def curves_section(comparison: Comparison) -> Section:
    panels = draw_curves(comparison)
    section = Section(
        name="curves",
        short="Curves",
        title="What it catches, what it costs, what it promises",
        lead="What a method gives up for what it catches, what is left when one abstains, and "
        "whether its probabilities mean what they say. Pick methods to put them in colour.",
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


def layers_section(comparison: Comparison) -> Section:
    panels = draw_layers(comparison)
    section = Section(
        name="layers",
        short="Layers",
        title="Where in the model the signal lies",
        lead="AUROC of a method that reads a single layer, at every layer.",
        content=draw_panels(panels),
        reading="The solid line is validation, on which the layer with the dot was chosen; the "
        "dotted line is test, drawn for comparison only.",
        pictures=("layers",),
    )
    return section.if_there(panels, "No method in this comparison was measured layer by layer.")


def losses_section(comparison: Comparison) -> Section:
    pairs = draw_losses(comparison)
    networks = [tag("div", [draw_panel(panel) for panel in pair]) for pair in pairs]
    section = Section(
        name="training",
        short="Training",
        title="How the networks learnt",
        lead="Loss and validation AUROC by epoch, a line a seed.",
        content=tag("div", networks, class_="panels"),
        reading="Solid is the training loss, dashed the validation loss. Where the two part, the "
        "network learns its training answers by heart; the weights kept are those of the epoch "
        "that was best on validation.",
        pictures=("losses",),
    )
    return section.if_there(pairs, "No network left a log of its training.")


def draw_panels(panels: Sequence[Panel]) -> Html:
    return tag("div", [draw_panel(panel) for panel in panels], class_="panels")


def _picker(comparison: Comparison) -> Html:
    """Chips with the line that a method has in the curves."""
    shown = shown_methods(comparison)
    ordered = sorted(comparison.scored, key=lambda method: method.name not in shown)
    chips = [_chip(comparison, method, is_shown=method.name in shown) for method in ordered]
    return tag("div", chips, class_="chips", role="group", aria_label="Methods in colour")


def _chip(comparison: Comparison, method: MethodResult, *, is_shown: bool) -> Html:
    dashes = DASHES[dash_of(comparison, method)] or None
    line = tag("line", x1=0, x2=24, y1=5, y2=5, stroke_dasharray=dashes)
    return tag(
        "button",
        tag("svg", line, width=24, height=10, aria_hidden="true"),
        tag("bdi", method.title),
        tag("small", decimals(method.test_auroc)),
        type="button",
        class_=f"chip {colour_of(method.family)}",
        aria_pressed="true" if is_shown else "false",
        data_method=method.name,
    )
