"""Trained on one set of questions, tested on another: a heat map a method."""

import math
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import Comparison
from clew.pages.panels import Matrix
from clew.pages.results import as_dict, as_number
from clew.pages.wording import decimals

_SHOWN_AT_FIRST = 4


def draw_transfer(comparison: Comparison) -> tuple[tuple[str, Matrix], ...]:
    """Titles and matrices, the best on validation first, then by their mean; empty where the
    comparison was on one store."""
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
    """Those to look at first, and those to fold away."""
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
