"""Tables for other programs: table.csv with every metric, table.tex ready to paste, and
transfer.csv with one matrix per method of training and test sets."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from clew.base.texts import for_terminal
from clew.hallucination.comparison.rows import Measured, Row, is_significant
from clew.hallucination.comparison.trial import Trial
from clew.storage.text_files import csv_text

_PLAIN = (
    *("method", "title", "family", "val_auroc", "test_auroc"),
    *("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc"),
    *("threshold", "seeds", "test_auroc_mean", "test_auroc_std"),
    *("parameters", "train_seconds", "ms_per_answer", "bytes_per_answer"),
)
_DIFFERENCE = ("difference", "low", "high", "p_value")
_PAIRS = ("versus_best", "versus_perplexity")
_COLUMNS = (
    *(*_PLAIN, "test_auroc_low", "test_auroc_high"),
    *(f"{pair}_{name}" for pair in _PAIRS for name in _DIFFERENCE),
)
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_NOTE = (
    "Methods sorted by their AUROC on {chosen_on}, by which the best (bold) is chosen; all other "
    "metrics are on the test answers ({count:,}). AUROC with 95\\,\\% bootstrap confidence "
    "interval; F1 and accuracy at the validation threshold; $\\Delta$: AUROC difference from "
    "perplexity ($^{{*}}$: $p < 0.05$, paired bootstrap). Seeds: mean and standard deviation."
)
# By method, then by the names of the stores: trained on, tested on.
Cells = Mapping[str, Mapping[tuple[str, str], Row]]


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """Highest validation AUROC first."""
    return sorted(rows, key=lambda row: -row["val_auroc"])


def make_csv(rows: Sequence[Row]) -> str:
    return csv_text([_COLUMNS, *([*_flatten(row).values()] for row in sort_rows(rows))])


def make_table(rows: Sequence[Row]) -> pa.Table:
    """What table.csv holds, as an Arrow table."""
    flat = [_flatten(row) for row in sort_rows(rows)]
    columns = {name: pa.array([row[name] for row in flat]) for name in _COLUMNS}
    return pa.table({name: _as_numbers(column) for name, column in columns.items()})


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column without a value, such as the deviation over one seed, is still one of numbers."""
    return column.cast(pa.float64()) if pa.types.is_null(column.type) else column


def _flatten(row: Row) -> dict[str, Any]:
    low, high = row["test_auroc_ci"]
    told = [(row[pair] or {}).get(name) for pair in _PAIRS for name in _DIFFERENCE]
    values = [*(row[name] for name in _PLAIN), low, high, *told]
    return dict(zip(_COLUMNS, values, strict=True))


def make_latex(
    rows: Sequence[Row], *, best: str, test_answers: int, chosen_on: str = "validation"
) -> str:
    """A table environment; requires the booktabs package."""
    note = _NOTE.format(count=test_answers, chosen_on=chosen_on)
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{note}}}",
        r"\begin{tabular}{lcccccccc}",
        r"\toprule",
        r"Method & AUROC & Seeds & AUPRC & F1 & Acc. & ECE & AURC & $\Delta$ \\",
        r"\midrule",
        *(_latex_row(row, is_best=row["method"] == best) for row in sort_rows(rows)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>]", lambda found: _LATEX[found[0]], for_terminal(text))


def _latex_row(row: Row, *, is_best: bool) -> str:
    title, (low, high) = escape_latex(row["title"]), row["test_auroc_ci"]
    figure = f"{row['test_auroc']:.3f}"
    if is_best:
        title, figure = rf"\textbf{{{title}}}", rf"\textbf{{{figure}}}"
    names = ("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc")
    cells = [
        title,
        f"{figure} [{low:.3f}, {high:.3f}]",
        _latex_seeds(row),
        *(f"{row[name]:.3f}" for name in names),
        _latex_difference(row["versus_perplexity"]),
    ]
    return " & ".join(cells) + r" \\"


def _latex_seeds(row: Row) -> str:
    if row["test_auroc_mean"] is None or row["test_auroc_std"] is None:
        return "--"
    return rf"${row['test_auroc_mean']:.3f} \pm {row['test_auroc_std']:.3f}$"


def _latex_difference(versus: dict[str, Any] | None) -> str:
    if versus is None:
        return "--"
    mark = "^{*}" if is_significant(versus) else ""
    return f"${versus['difference']:+.3f}{mark}$"


def describe_transfer(trials: Sequence[Trial], cells: Cells) -> dict[str, Any]:
    """The "transfer" of results.json: `auroc[method][trained on][tested on]`, null if a method did
    not run, `low` and `high` likewise; `answers[trained on][tested on]` is the number of test
    answers, `correct` that of the correct ones, and `excluded` that of shared questions."""
    train = [trial.name for trial in trials]
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
        "answers": [[len(t.labels(store).test) for store in t.tests] for t in trials],
        "correct": [[int((t.labels(s).test == 0).sum()) for s in t.tests] for t in trials],
        "excluded": [[int(t.shared[name].sum()) for name in test] for t in trials],
    }


def make_transfer_csv(trials: Sequence[Trial], cells: Cells) -> str:
    """One line per method and pair of stores."""
    names = ("val_auroc", "test_auroc")
    lines: list[Sequence[Any]] = [
        ("method", "train_on", "test_on", *names, "low", "high", "answers", "correct", "excluded")
    ]
    labels = {(t.name, store.name): t.labels(store).test for t in trials for store in t.tests}
    left = {(t.name, name): int(of.sum()) for t in trials for name, of in t.shared.items()}
    for method, of in cells.items():
        for (train, test), row in of.items():
            found = labels[train, test]
            counts = (len(found), int((found == 0).sum()), left[train, test])
            figures = (row[name] for name in names)
            lines.append([method, train, test, *figures, *row["test_auroc_ci"], *counts])
    return csv_text(lines)


def collect_cells(measured: Mapping[tuple[str, str], Sequence[Measured]]) -> dict[str, Any]:
    """By method, the results of every pair."""
    cells: dict[str, dict[tuple[str, str], Row]] = {}
    for pair, rows in measured.items():
        for one in rows:
            cells.setdefault(one.row["method"], {})[pair] = one.row
    return cells


def _matrix(
    values: Mapping[tuple[str, str], float], train: Sequence[str], test: Sequence[str]
) -> list[list[float | None]]:
    return [[values.get((row, column)) for column in test] for row in train]
