"""By question: AUROC of the best method and perplexity per category."""

from collections import Counter

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    Comparison,
    MethodResult,
    color_of,
)
from clew.hallucination.comparison.report.methods import draw_method_key
from clew.metrics import auroc, bootstrap_auroc
from clew.pages.figures import IntervalRow, draw_forest
from clew.pages.markup import Section, join
from clew.pages.numbers import counted, decimals, interval_text, percent

_MOST, _UNNAMED, _OTHERS = 12, "(no category)", "(all other categories)"
# With fewer answers of a class, a bootstrap interval can shrink to a point: it says nothing.
_FEWEST_FOR_INTERVAL = 5


def compared_methods(comparison: Comparison) -> list[MethodResult]:
    """The best, and perplexity if it is another."""
    methods = [comparison.best]
    perplexity = comparison.find("perplexity")
    if perplexity is not None and perplexity is not comparison.best:
        methods.append(perplexity)
    return [method for method in methods if method in comparison.scored]


def draw_categories(comparison: Comparison) -> tuple[IntervalRow, ...]:
    """A row per category and method, the most frequent category first; none without categories."""
    methods = compared_methods(comparison)
    return tuple(
        _row(comparison, category, rows, method, is_first=method is methods[0])
        for category, rows in group_rows(comparison).items()
        for method in methods
    )


def group_rows(comparison: Comparison) -> dict[str, np.ndarray]:
    """Maps each category to the rows of its test answers; categories after the twelfth form one
    group."""
    named = comparison.test.texts["category"]
    if not any(named):
        return {}
    names = [name or _UNNAMED for name in named]
    common = [name for name, _ in Counter(names).most_common()]
    common = common if len(common) <= _MOST + 1 else common[:_MOST]
    kept = np.array([name if name in set(common) else _OTHERS for name in names], dtype=object)
    order = [*common, _OTHERS] if _OTHERS in kept else common
    return {name: np.flatnonzero(kept == name) for name in order}


def _row(
    comparison: Comparison, category: str, rows: np.ndarray, method: MethodResult, *, is_first: bool
) -> IntervalRow:
    labels = comparison.test.labels[rows]
    value, interval = _measure(labels, comparison.test.risks[method.name][rows])
    shown = interval_text(interval) or "\N{EN DASH}"
    text = "only one class" if value is None else f"{decimals(value)} {shown}"
    size = f"{counted(len(rows), 'answer')}, {percent(float(labels.mean()))} hallucinated"
    return IntervalRow(
        label=category if is_first else "",
        note="" if is_first else size,
        color=color_of(method.family),
        value=value,
        interval=interval,
        text=text,
        tip=f"{category} ({size}): {method.title} {text}",
        key=method.name,
        is_marked=is_first,
        series=method.title,
    )


def _measure(
    labels: np.ndarray, risks: np.ndarray
) -> tuple[float | None, tuple[float, float] | None]:
    rarer = min(labels.sum(), len(labels) - labels.sum())
    if not rarer:
        return None, None
    if rarer < _FEWEST_FOR_INTERVAL:
        return auroc(labels, risks), None
    return auroc(labels, risks), bootstrap_auroc(labels, risks, resamples=1000)


def categories_section(comparison: Comparison) -> Section:
    rows = draw_categories(comparison)
    forest = draw_forest(rows, reference=CHANCE, words="test AUROC", is_grouped=True)
    section = Section(
        name="categories",
        short="Categories",
        title="AUROC by category",
        lead=f"{_listed_titles(comparison)} within each category of question.",
        content=join(draw_method_key(compared_methods(comparison)), forest),
        reading="Within a category, the category itself carries no information: a method with a "
        "high AUROC here reads more than the type of question. A category with fewer than "
        f"{_FEWEST_FOR_INTERVAL} correct or {_FEWEST_FOR_INTERVAL} hallucinated answers has no "
        "confidence interval (\N{EN DASH}): do not rely on its AUROC.",
        pictures=("categories",),
    )
    return section.if_there(
        rows, "The questions have no categories, or there are no per-answer risks."
    )


def _listed_titles(comparison: Comparison) -> str:
    return " and ".join(method.title for method in compared_methods(comparison))
