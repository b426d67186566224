"""The methods side by side: AUROC on one axis, and a sortable table of every metric and cost."""

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
from clew.pages.figures import IntervalRow, draw_forest
from clew.pages.markup import Child, Html, Section, join, tag
from clew.pages.numbers import (
    as_dict,
    as_number,
    brief,
    counted,
    decimals,
    duration,
    interval_text,
    p_text,
    signed,
    size,
)


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
    hollow = tag("span", tag("i", class_="swatch hollow"), "validation AUROC", class_="key")
    return tag("p", keys, hollow, class_="keys")


def draw_method_key(methods: Sequence[MethodResult]) -> Html:
    """Which color is which method, where one per family is shown."""
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
        is_marked=method is comparison.best and comparison.has_best,
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
        title="AUROC of every method",
        lead="How well each method ranks hallucinated answers above correct ones on the test "
        "answers.",
        content=join(draw_family_key(comparison), forest),
        reading="A dot is the test AUROC, the bar its 95% bootstrap interval, the hollow dot "
        "the validation AUROC, by which the best method was selected. 0.5 is chance, 1 "
        "is perfect. The baselines (answer length, category, text) do not use the model: a "
        "detector must beat them.",
        pictures=("methods",),
    )


def table_section(comparison: Comparison) -> Section:
    bold = " The best test value of each column is bold."
    return Section(
        name="table",
        short="Table",
        title="All metrics",
        lead=f"Click a column heading to sort.{bold if comparison.has_enough_tests else ''}",
        content=draw_table(comparison),
        reading="F1 and accuracy use the threshold chosen on validation. Lower is better for the "
        "calibration error (ECE) and the area under the risk-coverage curve (AURC). Differences "
        "are tested with a paired bootstrap; those in gray are not statistically significant (p ≥ "
        "0.05). With several seeds, a row is the seed with the median validation AUROC; the seeds "
        "column has the mean and standard deviation over all of them.",
    )


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table. `better` is 1 if higher is better, -1 if lower is, otherwise 0."""

    name: str
    title: str
    text: Callable[[float | None], str] = decimals
    better: int = 0
    hint: str = ""


def _milliseconds(value: float | None) -> str:
    return duration(None if value is None else value / 1000)


_GROUPS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (
        "AUROC",
        (
            Column(
                name="test_auroc", title="test", better=1, hint="with its 95% bootstrap interval"
            ),
            Column(name="val_auroc", title="validation", hint="used to select the best method"),
            Column(name="test_auroc_mean", title="seeds", hint="mean ± standard deviation"),
        ),
    ),
    (
        "test split",
        (
            Column(
                name="test_auprc",
                title="AUPRC",
                better=1,
                hint="area under the precision-recall curve",
            ),
            Column(name="test_f1", title="F1", better=1, hint="at the validation threshold"),
            Column(name="test_accuracy", title="accuracy", better=1, hint="at the same threshold"),
            Column(
                name="test_ece",
                title="ECE",
                better=-1,
                hint="calibration error over 10 bins of as many answers each; lower is better",
            ),
            Column(
                name="test_aurc",
                title="AURC",
                better=-1,
                hint="area under the risk-coverage curve; lower is better",
            ),
        ),
    ),
    (
        "AUROC difference from",
        (
            Column(name="versus_best", title="the best", hint="paired bootstrap"),
            Column(name="versus_perplexity", title="perplexity", hint="paired bootstrap"),
        ),
    ),
    (
        "cost",
        (
            Column(name="parameters", title="parameters", text=brief),
            Column(name="train_seconds", title="training", text=duration),
            Column(
                name="ms_per_answer",
                title="scoring",
                text=_milliseconds,
                hint="time per answer, without capture and preprocessing",
            ),
            Column(
                name="bytes_per_answer",
                title="input",
                text=size,
                hint="data that the method reads per answer",
            ),
        ),
    ),
)


_SIGNIFICANT = 0.05
Groups = tuple[tuple[str, tuple[Column, ...]], ...]


def draw_table(comparison: Comparison) -> Html:
    groups = _filled_groups(comparison)
    winners = {column: _winner(comparison, column) for _, columns in groups for column in columns}
    rows = [_row(comparison, method, winners) for method in comparison.methods]
    table = tag("table", _head(groups), tag("tbody", rows), class_="sortable")
    return tag("div", table, class_="scroll wide", tabindex="0")


def _filled_groups(comparison: Comparison) -> Groups:
    """The groups of columns, without columns in which no method has a value; test AUROC always
    stays."""
    filled = (
        (name, tuple(column for column in columns if _is_filled(comparison, column)))
        for name, columns in _GROUPS
    )
    return tuple((name, columns) for name, columns in filled if columns)


def _is_filled(comparison: Comparison, column: Column) -> bool:
    if column.name == "test_auroc_mean":  # with a single seed, it would repeat the test AUROC
        return any((method.figure("seeds") or 0) > 1 for method in comparison.methods)
    values = [_value(method, column) for method in comparison.methods]
    return column.name == "test_auroc" or any(value is not None for value in values)


def _head(groups: Groups) -> Html:
    above = [tag("th", name, colspan=len(columns), scope="colgroup") for name, columns in groups]
    below = [_head_cell("method", "", is_text=True)]
    below += [_head_cell(column.title, column.hint) for _, columns in groups for column in columns]
    return tag("thead", tag("tr", tag("td"), above, class_="groups"), tag("tr", below))


def _head_cell(title: str, hint: str, *, is_text: bool = False) -> Html:
    button = tag("button", title, type="button", data_tip=hint or None)
    return tag("th", button, scope="col", class_="name" if is_text else "number")


def _row(comparison: Comparison, method: MethodResult, winners: dict[Column, float | None]) -> Html:
    cells = [_cell(method, column, winner) for column, winner in winners.items()]
    is_best = method is comparison.best and comparison.has_best
    name = _name_cell(method, f"best on {comparison.chosen_on}" if is_best else None)
    classes = f"{color_of(method.family)}{' best' if is_best else ''}"
    return tag("tr", name, cells, class_=classes, data_key=method.name)


def _name_cell(method: MethodResult, words: str | None) -> Html:
    badge = tag("span", words, class_="badge") if words else None
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
    return join(f"{mean:.3f}{beside}", _below(counted(int(seeds), "seed") if seeds else ""))


def _difference(raw: dict[str, Any], value: float | None) -> Html:
    """A difference with its p-value, pale if it is not statistically significant."""
    p_value = as_number(raw.get("p_value"))
    text = tag("span", signed(value), class_=None if _is_significant(p_value) else "insignificant")
    return join(text, _below(p_text(p_value)))


def _is_significant(p_value: float | None) -> bool:
    return p_value is not None and p_value < _SIGNIFICANT


def _below(text: str) -> Html | None:
    return tag("small", text) if text else None


def _winner(comparison: Comparison, column: Column) -> float | None:
    values = [_value(method, column) for method in comparison.methods]
    known = [value for value in values if value is not None]
    if not column.better or not known or not comparison.has_enough_tests:
        return None
    return max(known) if column.better > 0 else min(known)
