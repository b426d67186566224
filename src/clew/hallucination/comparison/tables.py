"""The table for other programs: table.csv with every figure, table.tex ready to paste."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from clew.hallucination.comparison.rows import Row

_PLAIN = (
    *("method", "title", "family", "val_auroc", "test_auroc"),
    *("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc", "threshold"),
    *("seeds", "test_auroc_mean", "test_auroc_std"),
    *("parameters", "train_seconds", "ms_per_answer", "bytes_per_answer"),
)
_DIFFERENCE = ("difference", "low", "high", "p_value")
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
_NOTE = (
    "Methods sorted by validation AUROC, on which the best (bold) is chosen; all other figures are "
    "of the test split ({count:,} answers). AUROC with 95\\,\\% bootstrap interval; F1 and "
    "accuracy at the validation threshold; $\\Delta$: difference of AUROC to perplexity "
    "($^{{*}}$: $p < 0.05$, paired bootstrap). Seeds: mean and standard deviation."
)


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """The greatest validation AUROC first."""
    return sorted(rows, key=lambda row: -row["val_auroc"])


def make_csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    pairs = ("versus_best", "versus_perplexity")
    differences = [f"{pair}_{name}" for pair in pairs for name in _DIFFERENCE]
    writer.writerow([*_PLAIN, "test_auroc_low", "test_auroc_high", *differences])
    for row in sort_rows(rows):
        told = [(row[pair] or {}).get(name) for pair in pairs for name in _DIFFERENCE]
        writer.writerow([*(row[name] for name in _PLAIN), *row["test_auroc_ci"], *told])
    return out.getvalue()


def make_latex(rows: Sequence[Row], *, best: str, test_answers: int) -> str:
    """A table environment; needs the package booktabs."""
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{_NOTE.format(count=test_answers)}}}",
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
    return re.sub(r"[&%$#_{}\\~^<>]", lambda found: _LATEX[found[0]], text)


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
    mark = "^{*}" if versus["p_value"] < 0.05 else ""
    return f"${versus['difference']:+.3f}{mark}$"
