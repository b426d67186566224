"""Trained on one set of questions, tested on another: a matrix a method."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from clew.hallucination.comparison.rows import Measured, Row
from clew.hallucination.comparison.trial import Trial

# By method, by the names of the stores: trained on, tested on.
Cells = Mapping[str, Mapping[tuple[str, str], Row]]


def describe_transfer(trials: Sequence[Trial], cells: Cells) -> dict[str, Any]:
    """The "transfer" of results.json: `auroc[method][trained on][tested on]`, null where a method
    did not run, `low` and `high` likewise; `left_out[trained on][tested on]` questions shared."""
    train = [trial.train.name for trial in trials]
    test = [store.name for store in trials[0].tests]
    low = {m: {at: row["test_auroc_ci"][0] for at, row in of.items()} for m, of in cells.items()}
    high = {m: {at: row["test_auroc_ci"][1] for at, row in of.items()} for m, of in cells.items()}
    middle = {m: {at: row["test_auroc"] for at, row in of.items()} for m, of in cells.items()}
    return {
        "stores": list(dict.fromkeys([*train, *test])),
        "train_on": train,
        "test_on": test,
        "methods": list(cells),
        "titles": [next(iter(of.values()))["title"] for of in cells.values()],
        **{
            name: [_matrix(values[method], train, test) for method in cells]
            for name, values in (("auroc", middle), ("low", low), ("high", high))
        },
        "left_out": [[int(t.shared[name].sum()) for name in test] for t in trials],
    }


def make_transfer_csv(trials: Sequence[Trial], cells: Cells) -> str:
    """A line a method and pair of stores."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("val_auroc", "test_auroc")
    writer.writerow(["method", "train_on", "test_on", *names, "low", "high", "answers", "left_out"])
    left = {(t.train.name, name): shared for t in trials for name, shared in t.shared.items()}
    for method, of in cells.items():
        for (train, test), row in of.items():
            shared = left[train, test]
            counts = (int((~shared).sum()), int(shared.sum()))
            figures = (row[name] for name in names)
            writer.writerow([method, train, test, *figures, *row["test_auroc_ci"], *counts])
    return out.getvalue()


def collect_cells(measured: Mapping[tuple[str, str], Sequence[Measured]]) -> dict[str, Any]:
    """By method what was measured by pair."""
    cells: dict[str, dict[tuple[str, str], Row]] = {}
    for pair, rows in measured.items():
        for one in rows:
            cells.setdefault(one.row["method"], {})[pair] = one.row
    return cells


def _matrix(
    values: Mapping[tuple[str, str], float], train: Sequence[str], test: Sequence[str]
) -> list[list[float | None]]:
    return [[values.get((row, column)) for column in test] for row in train]
