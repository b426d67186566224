"""The methods side by side: every method on one axis, and the table of every figure, sortable, with
what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    FAMILIES,
    Comparison,
    MethodResult,
    color_of,
)
from clew.pages.figures import (
    as_dict,
    as_number,
    decimals,
    interval_text,
    p_text,
    short,
    signed,
    size,
    whole,
)
from clew.pages.forest import IntervalRow, draw_forest
from clew.pages.markup import Child, Html, join, tag
from clew.pages.shell import Section


def draw_method_rows(comparison: Comparison) -> tuple[IntervalRow, ...]:
    return tuple(_interval_row(comparison, method) for method in comparison.methods)


def draw_family_key(comparison: Comparison) -> Html:
    """Which color is which family."""
    present = {method.family for method in comparison.methods}
    families = [family for family in (*FAMILIES, "other") if family in present]
    keys = [
        tag("span", tag("i", class_="swatch"), family, class_=f"key {color_of(family)}")
        for family in families
    ]
    hollow = tag("span", tag("i", class_="swatch hollow"), "on validation", class_="key")
    return tag("p", keys, hollow, class_="keys")


def draw_method_key(methods: Sequence[MethodResult]) -> Html:
    """Which color is which method, where one of a family is shown."""
    keys = [
        tag(
            "span",
            tag("i", class_="swatch"),
            method.title,
            class_=f"key {color_of(method.family)}",
        )
        for method in methods
    ]
    return tag("p", keys, class_="keys")


def _interval_row(comparison: Comparison, method: MethodResult) -> IntervalRow:
    text = f"{decimals(method.test_auroc)} {interval_text(method.interval)}".strip()
    chosen = chosen_text(method.chosen)
    tip = f"{method.title}: test AUROC {text}, validation {decimals(method.val_auroc)}"
    return IntervalRow(
        label=method.title,
        color=color_of(method.family),
        value=method.test_auroc,
        interval=method.interval,
        hollow=method.val_auroc,
        text=text,
        tip=f"{tip} ({chosen})" if chosen else tip,
        key=method.name,
        is_marked=method is comparison.best,
        series=method.family,
    )


def chosen_text(chosen: dict[str, Any]) -> str:
    """`{"layer": 18, "C": 0.01}` as "layer 18, C 0.01"."""
    return ", ".join(f"{name} {_chosen_value(value)}" for name, value in chosen.items())


def _chosen_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        "are better when less. Differences are paired bootstraps; those in gray may be chance "
        "(p of 0.05 or more). With seeds, the row is the seed of median validation AUROC; the "
        "mean and deviation over all seeds stand beside it.",
    )


@dataclass(frozen=True, kw_only=True)
class Column:
    """`better` is 1 where more is better, -1 where less is, 0 where it is neither."""

    name: str
    title: str
    text: Callable[[float | None], str] = decimals
    better: int = 0
    hint: str = ""


_GROUPS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (
        "AUROC",
        (
            Column(name="test_auroc", title="test", better=1, hint="with 95% bootstrap interval"),
            Column(
                name="val_auroc", title="validation", hint="what the choice of the best is from"
            ),
            Column(name="test_auroc_mean", title="seeds", hint="mean ± deviation over seeds"),
        ),
    ),
    (
        "test split",
        (
            Column(name="test_auprc", title="AUPRC", better=1, hint="area under precision-recall"),
            Column(name="test_f1", title="F1", better=1, hint="at the validation threshold"),
            Column(name="test_accuracy", title="accuracy", better=1, hint="at the same threshold"),
            Column(
                name="test_ece", title="ECE", better=-1, hint="calibration error; less is better"
            ),
            Column(name="test_aurc", title="AURC", better=-1, hint="risk-coverage; less is better"),
        ),
    ),
    (
        "AUROC minus that of",
        (
            Column(name="versus_best", title="the best", hint="paired bootstrap"),
            Column(name="versus_perplexity", title="perplexity", hint="paired bootstrap"),
        ),
    ),
    (
        "cost",
        (
            Column(name="parameters", title="parameters", text=whole),
            Column(name="train_seconds", title="training, s", text=short),
            Column(
                name="ms_per_answer",
                title="ms",
                text=short,
                hint="milliseconds to score an answer; capturing and sampling it not counted",
            ),
            Column(
                name="bytes_per_answer",
                title="stored",
                text=size,
                hint="bytes of an answer that the method reads",
            ),
        ),
    ),
)


_COLUMNS = tuple(column for _, columns in _GROUPS for column in columns)


_SURE = 0.05


def draw_table(comparison: Comparison) -> Html:
    winners = {column.name: _winner(comparison, column) for column in _COLUMNS}
    rows = [_row(comparison, method, winners) for method in comparison.methods]
    table = tag("table", _head(), tag("tbody", rows), class_="sortable")
    return tag("div", table, class_="scroll", tabindex="0")


def _head() -> Html:
    above = [tag("th", name, colspan=len(columns), scope="colgroup") for name, columns in _GROUPS]
    below = [_head_cell("method", "", is_text=True)]
    below += [_head_cell(column.title, column.hint) for column in _COLUMNS]
    return tag("thead", tag("tr", tag("td"), above, class_="groups"), tag("tr", below))


def _head_cell(title: str, hint: str, *, is_text: bool = False) -> Html:
    button = tag("button", title, type="button", data_tip=hint or None)
    return tag("th", button, scope="col", class_="name" if is_text else "number")


def _row(comparison: Comparison, method: MethodResult, winners: dict[str, float | None]) -> Html:
    cells = [_cell(method, column, winners[column.name]) for column in _COLUMNS]
    is_best = method is comparison.best
    name = _name_cell(method, is_best=is_best)
    classes = f"{color_of(method.family)}{' best' if is_best else ''}"
    return tag("tr", name, cells, class_=classes, data_key=method.name)


def _name_cell(method: MethodResult, *, is_best: bool) -> Html:
    badge = tag("span", "best on validation", class_="badge") if is_best else None
    chosen = chosen_text(method.chosen)
    below = tag("small", chosen, dir="auto") if chosen else None
    title = tag("span", tag("i", class_="swatch"), tag("bdi", method.title), class_="title")
    return tag("th", title, badge, below, scope="row", class_="name", data_value=method.title)


def _cell(method: MethodResult, column: Column, winner: float | None) -> Html:
    value = _value(method, column)
    content = _content(method, column, value)
    is_winner = value is not None and value == winner
    classes = "number winner" if is_winner else "number"
    return tag("td", content, class_=classes, data_value="" if value is None else f"{value:.6g}")


def _value(method: MethodResult, column: Column) -> float | None:
    raw = method.row.get(column.name)
    return as_number(as_dict(raw).get("difference") if isinstance(raw, dict) else raw)


def _content(method: MethodResult, column: Column, value: float | None) -> Child:
    if column.name == "test_auroc":
        return join(column.text(value), _below(interval_text(method.interval)))
    if column.name == "test_auroc_mean":
        return _seeds(method, value)
    if column.name.startswith("versus_"):
        return _difference(as_dict(method.row.get(column.name)), value)
    return column.text(value)


def _seeds(method: MethodResult, mean: float | None) -> Html:
    if mean is None:
        return join(decimals(None))
    spread, seeds = method.figure("test_auroc_std"), method.figure("seeds")
    beside = f" ± {spread:.3f}" if spread is not None else ""
    return join(f"{mean:.3f}{beside}", _below(f"{seeds:.0f} seeds" if seeds else ""))


def _difference(raw: dict[str, Any], value: float | None) -> Html:
    """Pale where chance alone may have made it."""
    p_value = as_number(raw.get("p_value"))
    text = tag("span", signed(value), class_=None if _is_sure(p_value) else "unsure")
    return join(text, _below(p_text(p_value)))


def _is_sure(p_value: float | None) -> bool:
    return p_value is not None and p_value < _SURE


def _below(text: str) -> Html | None:
    return tag("small", text) if text else None


def _winner(comparison: Comparison, column: Column) -> float | None:
    values = [_value(method, column) for method in comparison.methods]
    known = [value for value in values if value is not None]
    if not column.better or not known:
        return None
    return max(known) if column.better > 0 else min(known)
