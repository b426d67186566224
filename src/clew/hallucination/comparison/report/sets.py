"""Several question sets: every method on sets that it was not trained on, and the matrix over all
pairs of sets."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import Comparison, report_section
from clew.pages.figures import Matrix, draw_matrix, in_rows
from clew.pages.markup import Section, join, tag
from clew.pages.numbers import as_dict, as_number, counted, decimals

_SHOWN_AT_FIRST = 4
_MEAN = "mean"


def left_out_section(comparison: Comparison) -> Section:
    matrix = _left_out(comparison)
    words = "AUROC of every method on sets it was not trained on"
    drawn = draw_matrix(matrix, words=words) if matrix else join()
    return report_section("left_out", drawn, figure=matrix, pictures={"left_out": [[drawn]]})


def _left_out(comparison: Comparison) -> Matrix | None:
    """A row per method, best on validation first; a column for the mean and one per set."""
    raw = as_dict(comparison.raw.get("leave_one_out"))
    names, titles = _names(raw, "sets"), _names(raw, "titles")
    if not (names and titles):
        return None
    shape = (len(titles), len(names))
    auroc, low, high = (_numbers(raw.get(name), shape) for name in ("auroc", "low", "high"))
    sides = (_column(raw.get(f"mean{side}"), len(titles)) for side in ("", "_low", "_high"))
    auroc, low, high = (
        np.concatenate([mean, each], axis=1)
        for mean, each in zip(sides, (auroc, low, high), strict=True)
    )
    counts = [
        np.tile([of.sum(), *of], (len(titles), 1))
        for of in (_column(raw.get(name), len(names))[:, 0] for name in ("answers", "correct"))
    ]
    columns = (f"{_MEAN} of {counted(len(names), 'set')}", *names)
    tips = [[f"{title} on {name}" for name in columns] for title in titles]
    return _matrix(titles, columns, (auroc, low, high), counts, tips)


def transfer_section(comparison: Comparison) -> Section:
    figures = [
        tag("div", tag("h3", title), draw_matrix(matrix, words=f"Transfer of {title}"))
        for title, matrix in _transfer(comparison)
    ]
    shown, folded = (
        tag("div", some, class_="heat-maps")
        for some in (figures[:_SHOWN_AT_FIRST], figures[_SHOWN_AT_FIRST:])
    )
    more = len(figures) - _SHOWN_AT_FIRST
    rest = (
        tag("details", tag("summary", counted(more, "more method")), folded) if more > 0 else None
    )
    printed = in_rows(figures, 3)
    content = join(shown, rest)
    return report_section("transfer", content, figure=figures, pictures={"transfer": printed})


def _transfer(comparison: Comparison) -> list[tuple[str, Matrix]]:
    """Titles and matrices, the best on validation first, then by mean AUROC; none where only one
    store was compared."""
    raw = as_dict(comparison.raw.get("transfer"))
    train, test = (_names(raw, side) or _names(raw, "stores") for side in ("train_on", "test_on"))
    methods = raw.get("methods")
    if not (train and test and isinstance(raw.get("auroc"), list) and isinstance(methods, list)):
        return []
    shape = (len(train), len(test))
    counts = [_numbers(raw.get(name), shape) for name in ("answers", "correct")]
    tips = [[f"trained on {row}, tested on {column}" for column in test] for row in train]
    tables = [_listed(raw.get(name)) for name in ("auroc", "low", "high")]
    found = []
    for place, name in enumerate(methods):
        own = [_numbers(table[place] if place < len(table) else None, shape) for table in tables]
        found.append((str(name), _matrix(train, test, own, counts, tips)))
    known = [(name, matrix) for name, matrix in found if np.isfinite(matrix.values).any()]
    known.sort(key=lambda pair: (pair[0] != comparison.best.name, -np.nanmean(pair[1].values)))
    titles = dict(zip(methods, raw.get("titles") or (), strict=False))
    titles |= {method.name: method.title for method in comparison.methods}
    return [(str(titles.get(name, name)), matrix) for name, matrix in known]


def _names(raw: dict[str, Any], name: str) -> tuple[str, ...]:
    names = raw.get(name)
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _numbers(table: Any, shape: tuple[int, int]) -> np.ndarray:
    """A table of JSON; what is missing or no number is NaN."""
    values = np.full(shape, math.nan)
    for row, cells in zip(range(shape[0]), _listed(table), strict=False):
        for column, cell in zip(range(shape[1]), _listed(cells), strict=False):
            number = as_number(cell)
            values[row, column] = math.nan if number is None else number
    return values


def _column(values: Any, count: int) -> np.ndarray:
    return _numbers([[value] for value in _listed(values)], (count, 1))


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    figures: Sequence[np.ndarray],
    counts: Sequence[np.ndarray],
    tips: Sequence[Sequence[str]],
) -> Matrix:
    """`figures` are AUROC, low and high; `counts` the answers and the correct ones."""
    values, *_ = figures
    places = [[(r, c) for c in range(len(columns))] for r in range(len(rows))]
    notes = [[_notes(figures, counts, at) for at in line] for line in places]
    return Matrix(
        rows=tuple(rows),
        columns=tuple(columns),
        values=values,
        tips=tuple(
            tuple(_tip(tips[r][c], values[r, c], notes[r][c]) for r, c in line) for line in places
        ),
        low=0.5,
        high=1.0,
        notes=tuple(map(tuple, notes)) if any(any(line) for line in notes) else (),
    )


def _notes(
    figures: Sequence[np.ndarray], counts: Sequence[np.ndarray], at: tuple[int, int]
) -> tuple[str, ...]:
    """The interval, and the number of answers and of correct ones; those that are known."""
    value, low, high = (float(one[at]) for one in figures)
    answers, correct = (float(one[at]) for one in counts)
    if not math.isfinite(value):
        return ()
    notes = [f"[{low:.3f}, {high:.3f}]"] if math.isfinite(low + high) else []
    if math.isfinite(answers + correct):
        notes.append(f"{answers:,.0f} ({correct:,.0f})")
    return tuple(notes)


def _tip(about: str, value: float, notes: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return f"{about}: not measured"
    interval = f" {notes[0]}" if notes else ""
    size = f", {notes[1].replace('(', 'answers (').replace(')', ' correct)')}" if notes[1:] else ""
    return f"{about}: AUROC {decimals(float(value))}{interval}{size}"
