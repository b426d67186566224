"""By question: AUROC of the best method and perplexity per category, and of every method on
question sets that it was not trained on."""

import math
from collections import Counter
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import (
    CHANCE,
    Comparison,
    MethodResult,
    color_of,
)
from clew.hallucination.comparison.report.methods import draw_method_key
from clew.metrics import auroc, bootstrap_auroc
from clew.pages.figures import as_dict, as_number, counted, decimals, interval_text, percent
from clew.pages.forest import IntervalRow, draw_forest
from clew.pages.heatmap import Matrix, draw_matrix
from clew.pages.markup import Html, join, tag
from clew.pages.shell import Section

_MOST, _UNNAMED, _OTHERS = 12, "(no category)", "(all other categories)"
_SHOWN_AT_FIRST = 4
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


def transfer_section(comparison: Comparison) -> Section:
    matrices = draw_transfer(comparison)
    shown, folded = split_shown(matrices)
    more = tag("summary", f"{counted(len(folded), 'more method')}")
    section = Section(
        name="transfer",
        short="Transfer",
        title="Transfer to other question sets",
        lead="Trained on one question set, tested on another.",
        content=join(
            _heat_maps(shown), tag("details", more, _heat_maps(folded)) if folded else None
        ),
        reading="Rows are training sets, columns test sets, cells the test AUROC; pale is chance. "
        "Off the diagonal, a method is tested on questions from a set that it was not trained on.",
        pictures=("transfer",),
    )
    return section.if_there(
        matrices,
        'Only one question set was compared. For a transfer matrix, run "clew compare" on '
        "several folders of samples of the same model.",
    )


def _heat_maps(matrices: tuple[tuple[str, Matrix], ...]) -> Html:
    figures = [
        tag("div", tag("h3", title), draw_matrix(matrix, words=f"Transfer of {title}"))
        for title, matrix in matrices
    ]
    return tag("div", figures, class_="heat-maps")


def draw_transfer(comparison: Comparison) -> tuple[tuple[str, Matrix], ...]:
    """Titles and matrices, the best on validation first, then by mean AUROC; none where only one
    store was compared."""
    raw = as_dict(comparison.raw.get("transfer"))
    train, test = (_names(raw, side) for side in ("train_on", "test_on"))
    tables, methods = raw.get("auroc"), raw.get("methods")
    if not (train and test and isinstance(tables, list) and isinstance(methods, list)):
        return ()
    found = [
        (str(name), _matrix(table, train, test))
        for name, table in zip(methods, tables, strict=False)
    ]
    known = [(name, matrix) for name, matrix in found if np.isfinite(matrix.values).any()]
    known.sort(key=lambda pair: (pair[0] != comparison.best.name, -np.nanmean(pair[1].values)))
    return tuple((_title(comparison, raw, name), matrix) for name, matrix in known)


def split_shown(
    matrices: tuple[tuple[str, Matrix], ...],
) -> tuple[tuple[tuple[str, Matrix], ...], tuple[tuple[str, Matrix], ...]]:
    """Those shown at first, and those folded."""
    return matrices[:_SHOWN_AT_FIRST], matrices[_SHOWN_AT_FIRST:]


def _names(raw: dict[str, Any], side: str) -> tuple[str, ...]:
    names = raw.get(side) or raw.get("stores")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _title(comparison: Comparison, raw: dict[str, Any], name: str) -> str:
    method = comparison.find(name)
    titles = dict(zip(raw["methods"], raw.get("titles") or (), strict=False))
    return method.title if method else str(titles.get(name, name))


def _matrix(table: Any, train: tuple[str, ...], test: tuple[str, ...]) -> Matrix:
    values = np.full((len(train), len(test)), math.nan)
    for row, cells in zip(range(len(train)), table or (), strict=False):
        for column, cell in zip(range(len(test)), cells or (), strict=False):
            number = as_number(cell)
            values[row, column] = math.nan if number is None else number
    return Matrix(
        rows=train,
        columns=test,
        values=values,
        tips=tuple(
            tuple(_tip(train[r], test[c], values[r, c]) for c in range(len(test)))
            for r in range(len(train))
        ),
        low=0.5,
        high=1.0,
    )


def _tip(train: str, test: str, value: float) -> str:
    if not math.isfinite(value):
        return f"trained on {train}, tested on {test}: not measured"
    return f"trained on {train}, tested on {test}: AUROC {decimals(float(value))}"
