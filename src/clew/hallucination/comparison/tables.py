"""Tables for other programs: table.csv with every metric, table.tex ready to paste, and
transfer.csv with one matrix per method of training and test sets."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.texts import for_terminal
from clew.hallucination.comparison.evaluation import Evaluation, Part
from clew.hallucination.comparison.measuring import (
    FEWEST,
    Measured,
    Row,
    count_rarer,
    differ,
    is_significant,
    pick_best,
)
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
    return latex_table(
        _NOTE.format(count=test_answers, chosen_on=chosen_on),
        ("Method", "AUROC", "Seeds", "AUPRC", "F1", "Acc.", "ECE", "AURC", r"$\Delta$"),
        [_latex_row(row, is_best=row["method"] == best) for row in sort_rows(rows)],
    )


def latex_table(note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{note}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^<>]", lambda found: _LATEX[found[0]], for_terminal(text))


def _latex_row(row: Row, *, is_best: bool) -> list[str]:
    title, (low, high) = escape_latex(row["title"]), row["test_auroc_ci"]
    figure = f"{row['test_auroc']:.3f}"
    if is_best:
        title, figure = rf"\textbf{{{title}}}", rf"\textbf{{{figure}}}"
    names = ("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc")
    return [
        title,
        f"{figure} [{low:.3f}, {high:.3f}]",
        _latex_seeds(row),
        *(f"{row[name]:.3f}" for name in names),
        _latex_difference(row["versus_perplexity"]),
    ]


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
    figures: dict[str, Callable[[Row], float]] = {
        "auroc": lambda row: row["test_auroc"],
        "low": lambda row: row["test_auroc_ci"][0],
        "high": lambda row: row["test_auroc_ci"][1],
    }
    return {
        "stores": list(dict.fromkeys([*train, *test])),
        "train_on": train,
        "test_on": test,
        "methods": list(cells),
        "titles": [next(iter(of.values()))["title"] for of in cells.values()],
        **{
            name: [
                [[figure(of[a, b]) if (a, b) in of else None for b in test] for a in train]
                for of in cells.values()
            ]
            for name, figure in figures.items()
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


_SHOWN_NAMES = 3
_SETS_NOTE = (
    "Leave-one-set-out: test AUROC on all answers of each question set by detectors that were "
    "trained on the others, with 95\\,\\% bootstrap confidence intervals; below each set its "
    "number of answers and how many are correct. The mean counts every set the same; its interval "
    "resamples answers within the sets."
)


def describe_left_out(evaluation: Evaluation) -> dict[str, Any]:
    """The "leave_one_out" of results.json: for every set its answers; for every method `auroc`,
    `low` and `high` by set, and the same for the mean over the sets."""
    parts = evaluation.parts
    titles = {one.row["method"]: one.row["title"] for one in evaluation.measured}
    order = [row["method"] for row in sort_rows([one.row for one in evaluation.measured])]
    means = {one.row["method"]: one.row for one in evaluation.measured}
    excluded = evaluation.plan.excluded or {}
    return {
        "sets": [part.store.name for part in parts],
        "answers": [len(part.labels.test) for part in parts],
        "correct": [int((part.labels.test == 0).sum()) for part in parts],
        "excluded": [excluded.get(part.store.name, 0) for part in parts],
        "trained_on": [part.trial.size for part in parts],
        "methods": order,
        "titles": [titles[name] for name in order],
        "auroc": [[part.measured[name].row["test_auroc"] for part in parts] for name in order],
        **{
            side: [[p.measured[name].row["test_auroc_ci"][end] for p in parts] for name in order]
            for end, side in enumerate(("low", "high"))
        },
        "mean": [means[name]["test_auroc"] for name in order],
        "mean_low": [means[name]["test_auroc_ci"][0] for name in order],
        "mean_high": [means[name]["test_auroc_ci"][1] for name in order],
    }


def list_names(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    if len(names) <= _SHOWN_NAMES + 1:
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{', '.join(names[:_SHOWN_NAMES])} and {len(names) - _SHOWN_NAMES} more"


def make_sets_csv(sets: Mapping[str, Any]) -> str:
    """One line per method and set, and one for its mean."""
    lines: list[Sequence[Any]] = [
        ("method", "test_on", "test_auroc", "low", "high", "answers", "correct", "excluded")
    ]
    for place, method in enumerate(sets["methods"]):
        figures = zip(*(sets[name][place] for name in ("auroc", "low", "high")), strict=True)
        counts = zip(*(sets[name] for name in ("answers", "correct", "excluded")), strict=True)
        for name, values, of in zip(sets["sets"], figures, counts, strict=True):
            lines.append([method, name, *values, *of])
        mean = [sets[name][place] for name in ("mean", "mean_low", "mean_high")]
        total = [sum(sets[name]) for name in ("answers", "correct", "excluded")]
        lines.append([method, "(mean)", *mean, *total])
    return csv_text(lines)


def make_sets_latex(sets: Mapping[str, Any]) -> str:
    """A table environment with one column per set; requires the booktabs package."""
    sizes = zip(sets["sets"], sets["answers"], sets["correct"], strict=True)
    heads = [f"{escape_latex(name)} ({of:,}; {correct:,})" for name, of, correct in sizes]
    rows = []
    for place, title in enumerate(sets["titles"]):
        triples = zip(*(sets[name][place] for name in ("auroc", "low", "high")), strict=True)
        mean = [sets[name][place] for name in ("mean", "mean_low", "mean_high")]
        cells = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in (mean, *triples)]
        rows.append([escape_latex(title), *cells])
    return latex_table(_SETS_NOTE, ("Method", "Mean", *heads), rows)


def tell_transfer(evaluation: Evaluation) -> dict[str, str]:
    """Sentences on how the best method does on single sets that it was not trained on."""
    best = pick_best(evaluation.measured)
    told = {
        "sets": _tell_range(best, evaluation.parts),
        "floor": _tell_floor(best, evaluation.parts),
        "few_sets": _tell_thin(evaluation.parts),
    }
    return {about: sentence for about, sentence in told.items() if sentence}


def _tell_range(best: Measured, parts: Sequence[Part]) -> str:
    """How much the sets differ, and the AUROC on answers that chose nothing."""
    found = {p.store.name: p.measured[best.row["method"]].row["test_auroc"] for p in parts}
    worst, top = min(found, key=lambda n: found[n]), max(found, key=lambda n: found[n])
    alone = best.row["test_split_auroc"]
    beside = (
        "" if alone is None else f" On the test splits alone, which chose nothing: {alone:.3f}."
    )
    told = f"It ranges from {found[worst]:.3f} on {worst} to {found[top]:.3f} on {top}."
    return f"{told}{beside}"


def _tell_floor(best: Measured, parts: Sequence[Part]) -> str | None:
    """On which sets the best method is worse than token probabilities."""
    name = best.row["method"]
    if name == "perplexity" or not all("perplexity" in part.measured for part in parts):
        return None
    below = []
    for part in parts:
        ours, plain = part.measured[name], part.measured["perplexity"]
        versus = differ(part.labels, ours, plain)
        if versus and versus["difference"] < 0 and is_significant(versus):
            below.append(f"{part.store.name} ({versus['difference']:+.3f})")
    if not below:
        return "On no set is it significantly worse than perplexity."
    return f"It is significantly worse than perplexity on {list_names(below)} (p < 0.05)."


def _tell_thin(parts: Sequence[Part]) -> str | None:
    thin = [
        f"{part.store.name} ({_count(part.labels.test)})"
        for part in parts
        if count_rarer(part.labels.test) < FEWEST
    ]
    if not thin:
        return None
    return (
        f"Fewer than {FEWEST} answers of a class: {', '.join(thin)}. Their AUROC says little: use "
        "a larger model, easier questions, or more of them."
    )


def _count(labels: np.ndarray) -> str:
    correct = int((labels == 0).sum())
    hallucinated = len(labels) - correct
    rarer = "correct" if correct <= hallucinated else "hallucinated"
    return f"{min(correct, hallucinated)} {rarer}"
