"""How well the best method and perplexity do in each category of questions."""

from collections import Counter

import numpy as np

from clew.hallucination.comparison.report.comparison import Comparison, MethodResult
from clew.metrics import auroc, bootstrap_auroc
from clew.pages.panels import IntervalRow, colour_of
from clew.pages.wording import counted, decimals, interval_text, percent

_MOST, _UNNAMED, _OTHERS = 12, "(no category)", "(all other categories)"


def compared_methods(comparison: Comparison) -> list[MethodResult]:
    """The best, and perplexity if it is another."""
    methods = [comparison.best]
    perplexity = comparison.find("perplexity")
    if perplexity is not None and perplexity is not comparison.best:
        methods.append(perplexity)
    return [method for method in methods if method in comparison.scored]


def draw_categories(comparison: Comparison) -> tuple[IntervalRow, ...]:
    """A row a method and category, the most frequent first; empty when the questions have none."""
    methods = compared_methods(comparison)
    return tuple(
        _row(comparison, category, rows, method, is_first=method is methods[0])
        for category, rows in group_rows(comparison).items()
        for method in methods
    )


def group_rows(comparison: Comparison) -> dict[str, np.ndarray]:
    """Category to places of its test answers; those past the twelfth category are put together."""
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
    value, interval = _measure(labels, comparison.test.scores[method.name][rows])
    text = "one kind only" if value is None else f"{decimals(value)} {interval_text(interval)}"
    size = f"{counted(len(rows), 'answer')}, {percent(float(labels.mean()))} made up"
    return IntervalRow(
        label=category if is_first else "",
        note="" if is_first else size,
        colour=colour_of(method.family),
        value=value,
        interval=interval,
        text=text,
        tip=f"{category} ({size}): {method.title} {text}",
        method=method.name,
        is_marked=is_first,
        series=method.title,
    )


def _measure(
    labels: np.ndarray, scores: np.ndarray
) -> tuple[float | None, tuple[float, float] | None]:
    if not 0 < labels.sum() < len(labels):
        return None, None
    return auroc(labels, scores), bootstrap_auroc(labels, scores, resamples=1000)
