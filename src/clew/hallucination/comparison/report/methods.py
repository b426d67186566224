"""The methods side by side: AUROC on one axis, overall and by category and token, and a sortable
table of every metric and cost."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    FAMILIES,
    SIGNIFICANT,
    Comparison,
    MethodResult,
    color_of,
    report_section,
)
from clew.metrics.ranking import auroc, bootstrap_auroc
from clew.pages.figures import IntervalRow, draw_forest, print_forest
from clew.pages.markup import Child, Html, Section, join, tag
from clew.pages.numbers import (
    as_dict,
    as_interval,
    as_number,
    brief,
    counted,
    decimals,
    duration,
    interval_text,
    p_text,
    percent,
    signed,
    size,
)

_MOST, _UNNAMED, _OTHERS = 12, "(no category)", "(all other categories)"
# With fewer answers of a class, a bootstrap interval can shrink to a point: it says nothing.
_FEWEST_FOR_INTERVAL = 5
# Emphasized among the rows of tokens.
_MARKED = ("token_probe", "reader")
_CHARACTERS = ("characters", "hallucinated_characters")
Column = dict[str, str]


def rank_section(comparison: Comparison) -> Section:
    rows = [_method_row(comparison, method) for method in comparison.methods]
    present = {method.family for method in comparison.methods}
    families = [(name, color_of(name)) for name in (*FAMILIES, "other") if name in present]
    hollow = tag("span", tag("i", class_="swatch hollow"), "validation AUROC", class_="key")
    forest = draw_forest(rows, reference=CHANCE, words="test AUROC")
    printed = print_forest(rows, reference=CHANCE, words="test AUROC")
    findings = comparison.part("findings")
    told = [tag("p", str(text)) for about, text in findings.items() if about != "best"]
    content = join(_draw_key(families, hollow), forest, tag("div", told, class_="lead"))
    return report_section("methods", content, pictures={"methods": [[printed]]})


def _draw_key(colors: Iterable[tuple[str, str]], *more: Html) -> Html:
    """Which color is what."""
    keys = [
        tag("span", tag("i", class_="swatch"), name, class_=f"key {color}")
        for name, color in colors
    ]
    return tag("p", keys, *more, class_="keys")


def _method_row(comparison: Comparison, method: MethodResult) -> IntervalRow:
    text = f"{decimals(method.test_auroc)} {interval_text(method.interval)}".strip()
    chosen = _chosen_text(method.chosen)
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


def _chosen_text(chosen: dict[str, Any]) -> str:
    """`{"layer": 18, "C": 0.01}` as "layer 18, C 0.01"."""
    values = {name: f"{v:.4g}" if isinstance(v, float) else v for name, v in chosen.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())


def categories_section(comparison: Comparison) -> Section:
    """The best method, and perplexity if it is another, within each category."""
    methods = [comparison.best]
    perplexity = comparison.find("perplexity")
    if perplexity is not None and perplexity is not comparison.best:
        methods.append(perplexity)
    methods = [method for method in methods if method in comparison.scored]
    rows = draw_categories(comparison, methods)
    key = _draw_key((method.title, color_of(method.family)) for method in methods)
    forest = draw_forest(rows, reference=CHANCE, words="test AUROC", is_grouped=True)
    printed = print_forest(rows, reference=CHANCE, words="test AUROC")
    return report_section(
        "categories",
        join(key, forest),
        figure=rows,
        pictures={"categories": [[printed]]},
        methods=" and ".join(method.title for method in methods),
        fewest=_FEWEST_FOR_INTERVAL,
    )


def draw_categories(comparison: Comparison, methods: list[MethodResult]) -> list[IntervalRow]:
    """A row per category and method, the most frequent category first; none without categories."""
    return [
        _category_row(comparison, category, rows, method, is_first=method is methods[0])
        for category, rows in _group_rows(comparison).items()
        for method in methods
    ]


def _group_rows(comparison: Comparison) -> dict[str, np.ndarray]:
    """Maps each category to the rows of its test answers; categories after the twelfth form one
    group."""
    named = comparison.test.texts["category"]
    if not any(named):
        return {}
    names = [name or _UNNAMED for name in named]
    common = [name for name, _ in Counter(names).most_common()]
    common = common if len(common) <= _MOST + 1 else common[:_MOST]
    groups = np.array([name if name in set(common) else _OTHERS for name in names], dtype=object)
    order = [*common, _OTHERS] if _OTHERS in groups else common
    return {name: np.flatnonzero(groups == name) for name in order}


def _category_row(
    comparison: Comparison, category: str, rows: np.ndarray, method: MethodResult, *, is_first: bool
) -> IntervalRow:
    labels, risks = comparison.test.labels[rows], comparison.test.risks[method.name][rows]
    rarer = min(labels.sum(), len(labels) - labels.sum())
    value = auroc(labels, risks) if rarer else None
    has_interval = rarer >= _FEWEST_FOR_INTERVAL
    interval = bootstrap_auroc(labels, risks, resamples=1000) if has_interval else None
    shown = interval_text(interval) or "\N{EN DASH}"
    text = "only one class" if value is None else f"{decimals(value)} {shown}"
    told = f"{counted(len(rows), 'answer')}, {percent(float(labels.mean()))} hallucinated"
    return IntervalRow(
        label=category if is_first else "",
        note="" if is_first else told,
        color=color_of(method.family),
        value=value,
        interval=interval,
        text=text,
        tip=f"{category} ({told}): {method.title} {text}",
        key=method.name,
        is_marked=is_first,
        series=method.title,
    )


def tokens_section(comparison: Comparison) -> Section:
    """How well the risk of single tokens finds hallucinated spans."""
    raw = comparison.part("tokens")
    found = raw.get("rows")
    rows = [as_dict(row) for row in found] if isinstance(found, list) else []
    rate = as_number(raw.get("false_positive_rate")) or 0.0
    measures = [
        ("auroc", "AUROC per token", CHANCE),
        ("recall", f"Recall at {percent(rate)} false positives", rate),
    ]
    characters, wrong = (as_number(raw.get(name)) for name in _CHARACTERS)
    if characters and wrong is not None:  # all marked: every hallucinated character is found
        measures.append(("span_f1", "F1 of spans, by characters", 2 * wrong / (characters + wrong)))
    figures = []
    for name, title, reference in measures:
        forest = draw_forest([_token_row(r, name) for r in rows], reference=reference, words=title)
        figures.append(tag("div", tag("h3", title), forest))
    tokens, answers, hallucinated = (
        int(as_number(raw.get(name)) or 0) for name in ("tokens", "answers", "hallucinated")
    )
    counts = (
        f"{counted(tokens, 'token')} of {counted(answers, 'test answer')} "
        f"{'has' if tokens == 1 else 'have'} a span label; {hallucinated:,} of them "
        f"{'is' if hallucinated == 1 else 'are'} hallucinated."
    )
    return report_section("tokens", join(*figures), figure=rows, counts=counts)


def _token_row(row: dict[str, Any], name: str) -> IntervalRow:
    value, interval = as_number(row.get(name)), as_interval(row.get(f"{name}_ci"))
    title = str(row.get("title", ""))
    text = f"{decimals(value)} {interval_text(interval)}".strip()
    is_probe = row.get("method") in _MARKED
    return IntervalRow(
        label=title,
        color=color_of("probe" if is_probe else "no training"),
        value=value,
        interval=interval,
        text=text,
        tip=f"{title}: {text}",
        is_marked=is_probe,
    )


@cache
def _read_columns() -> list[Column]:
    """The columns of the table. `better` is 1 if higher is better, -1 if lower is, otherwise 0."""
    text = (files(__package__) / "columns.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


_FORMATS: dict[str, Callable[[float | None], str]] = {
    "decimals": decimals,
    "brief": brief,
    "duration": duration,
    "milliseconds": lambda value: duration(None if value is None else value / 1000),
    "size": size,
}


def table_section(comparison: Comparison) -> Section:
    columns = [column for column in _read_columns() if _is_filled(comparison, column)]
    rows = [_table_row(comparison, method, columns) for method in comparison.methods]
    table = tag("table", _table_head(columns), tag("tbody", rows), class_="sortable")
    bold = " The best test value of each column is bold." if comparison.has_enough_tests else ""
    content = tag("div", table, class_="scroll wide", tabindex="0")
    return report_section("table", content, bold=bold)


def _is_filled(comparison: Comparison, column: Column) -> bool:
    """Whether any method has a value there; test AUROC always stays."""
    if column["name"] == "test_auroc_mean":  # with a single seed, it would repeat the test AUROC
        return any((method.figure("seeds") or 0) > 1 for method in comparison.methods)
    values = [_value(method, column) for method in comparison.methods]
    return column["name"] == "test_auroc" or any(value is not None for value in values)


def _table_head(columns: list[Column]) -> Html:
    groups = Counter(column["group"] for column in columns)
    above = [tag("th", name, colspan=count, scope="colgroup") for name, count in groups.items()]
    names = [("method", "", "name"), *((c["title"], c["hint"], "number") for c in columns)]
    below = [
        tag(
            "th", tag("button", title, type="button", data_tip=hint or None), scope="col", class_=of
        )
        for title, hint, of in names
    ]
    return tag("thead", tag("tr", tag("td"), above, class_="groups"), tag("tr", below))


def _table_row(comparison: Comparison, method: MethodResult, columns: list[Column]) -> Html:
    is_best = method is comparison.best and comparison.has_best
    badge = tag("span", f"best on {comparison.chosen_on}", class_="badge") if is_best else None
    chosen = _chosen_text(method.chosen)
    below = tag("small", chosen, dir="auto") if chosen else None
    title = tag("span", tag("i", class_="swatch"), tag("bdi", method.title), class_="title")
    name = tag("th", title, badge, below, scope="row", class_="name", data_value=method.title)
    cells = []
    for column in columns:
        value = _value(method, column)
        is_winner = value is not None and value == _winner(comparison, column)
        told = "" if value is None else f"{value:.6g}"
        content = _content(method, column, value)
        of = "number winner" if is_winner else "number"
        cells.append(tag("td", content, class_=of, data_value=told))
    classes = f"{color_of(method.family)}{' best' if is_best else ''}"
    return tag("tr", name, cells, class_=classes, data_key=method.name)


def _value(method: MethodResult, column: Column) -> float | None:
    raw = method.row.get(column["name"])
    return as_number(as_dict(raw).get("difference") if isinstance(raw, dict) else raw)


def _winner(comparison: Comparison, column: Column) -> float | None:
    values = [_value(method, column) for method in comparison.methods]
    known = [value for value in values if value is not None]
    if column["better"] == "0" or not known or not comparison.has_enough_tests:
        return None
    return max(known) if column["better"] == "1" else min(known)


def _content(method: MethodResult, column: Column, value: float | None) -> Child:
    """The text of a cell, and what stands below it."""
    shown: Child = _FORMATS[column["format"]](value)
    below = ""
    if column["name"] == "test_auroc":
        below = interval_text(method.interval)
    elif column["name"] == "test_auroc_mean" and value is not None:
        spread, seeds = method.figure("test_auroc_std"), method.figure("seeds")
        shown = f"{value:.3f} ± {spread:.3f}" if spread is not None else f"{value:.3f}"
        below = counted(int(seeds), "seed") if seeds else ""
    elif column["name"].startswith("versus_"):  # pale if it is not statistically significant
        p_value = as_number(as_dict(method.row.get(column["name"])).get("p_value"))
        is_sure = p_value is not None and p_value < SIGNIFICANT
        shown = tag("span", signed(value), class_=None if is_sure else "insignificant")
        below = p_text(p_value)
    return join(shown, tag("small", below) if below else None)
