"""Several question sets: every method on sets that it was not trained on, and the matrix over all
pairs of sets."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.hallucination.comparison.report.comparison import Comparison
from clew.pages.figures import Matrix, draw_matrix
from clew.pages.markup import Html, Section, join, tag
from clew.pages.numbers import as_dict, as_number, counted, decimals

_SHOWN_AT_FIRST = 4
_MEAN = "mean"
_ONE_SET = (
    'Only one question set was compared. For transfer, run "clew compare" on several folders of '
    "samples of the same model."
)


def left_out_section(comparison: Comparison) -> Section:
    matrix = draw_left_out(comparison)
    words = "AUROC of every method on sets it was not trained on"
    return Section(
        name="left_out",
        short="Unseen sets",
        title="On question sets that were not trained on",
        lead="Every question set is tested with all of its answers by detectors that were trained "
        "on the other sets.",
        content=draw_matrix(matrix, words=words) if matrix else join(),
        reading="A cell is the AUROC on one set, with its 95% interval, the number of answers and "
        "how many of them are correct; pale is chance. Layers, thresholds and calibration were "
        "chosen on the validation splits of the other sets. The mean counts every set the same; "
        "its interval resamples answers, so it does not say how the AUROC varies between sets.",
        pictures=("left_out",),
    ).if_there(matrix, _ONE_SET)


def draw_left_out(comparison: Comparison) -> Matrix | None:
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
    matrices = draw_transfer(comparison)
    shown, folded = split_shown(matrices)
    more = tag("summary", f"{counted(len(folded), 'more method')}")
    section = Section(
        name="transfer",
        short="Transfer",
        title="Transfer between pairs of question sets",
        lead="Trained on one question set, tested on another.",
        content=join(
            _heat_maps(shown), tag("details", more, _heat_maps(folded)) if folded else None
        ),
        reading="Rows are training sets, columns test sets. A cell is the test AUROC with its 95% "
        "interval, the number of answers and how many of them are correct; pale is chance. On the "
        "diagonal, a method is tested on the test split of its own set; elsewhere on all answers "
        "of a set that it was not trained on.",
        pictures=("transfer",),
    )
    return section.if_there(matrices, _ONE_SET)


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
    train, test = (_names(raw, side) or _names(raw, "stores") for side in ("train_on", "test_on"))
    methods = raw.get("methods")
    if not (train and test and isinstance(raw.get("auroc"), list) and isinstance(methods, list)):
        return ()
    shape = (len(train), len(test))
    counts = [_numbers(raw.get(name), shape) for name in ("answers", "correct")]
    tips = [[f"trained on {row}, tested on {column}" for column in test] for row in train]
    found = [
        (str(name), _matrix(train, test, _figures(raw, place, shape), counts, tips))
        for place, name in enumerate(methods)
    ]
    known = [(name, matrix) for name, matrix in found if np.isfinite(matrix.values).any()]
    known.sort(key=lambda pair: (pair[0] != comparison.best.name, -np.nanmean(pair[1].values)))
    return tuple((_title(comparison, raw, name), matrix) for name, matrix in known)


def split_shown(
    matrices: tuple[tuple[str, Matrix], ...],
) -> tuple[tuple[tuple[str, Matrix], ...], tuple[tuple[str, Matrix], ...]]:
    """Those shown at first, and those folded."""
    return matrices[:_SHOWN_AT_FIRST], matrices[_SHOWN_AT_FIRST:]


def _names(raw: dict[str, Any], name: str) -> tuple[str, ...]:
    names = raw.get(name)
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _title(comparison: Comparison, raw: dict[str, Any], name: str) -> str:
    method = comparison.find(name)
    titles = dict(zip(raw["methods"], raw.get("titles") or (), strict=False))
    return method.title if method else str(titles.get(name, name))


def _figures(raw: dict[str, Any], place: int, shape: tuple[int, int]) -> list[np.ndarray]:
    """AUROC and interval of one method."""
    tables = (raw.get(name) for name in ("auroc", "low", "high"))
    return [
        _numbers(table[place] if isinstance(table, list) and place < len(table) else None, shape)
        for table in tables
    ]


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
