"""The leave-one-set-out table: every question set, tested by detectors that were trained on the
others. In results.json, as CSV, as LaTeX and in words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.hallucination.comparison.evaluation import Evaluation
from clew.hallucination.comparison.pooling import Part
from clew.hallucination.comparison.rows import (
    FEWEST,
    Measured,
    count_rarer,
    differ,
    is_significant,
    pick_best,
)
from clew.hallucination.comparison.tables import escape_latex, sort_rows
from clew.storage.text_files import csv_text

_SHOWN_NAMES = 3
_NOTE = (
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
    heads = [
        f"{escape_latex(name)} ({answers:,}; {correct:,})"
        for name, answers, correct in zip(
            sets["sets"], sets["answers"], sets["correct"], strict=True
        )
    ]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{_NOTE}}}",
        rf"\begin{{tabular}}{{l{'c' * (len(heads) + 1)}}}",
        r"\toprule",
        " & ".join(["Method", "Mean", *heads]) + r" \\",
        r"\midrule",
        *(_latex_row(sets, place) for place in range(len(sets["methods"]))),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_row(sets: Mapping[str, Any], place: int) -> str:
    triples = zip(*(sets[name][place] for name in ("auroc", "low", "high")), strict=True)
    mean = [sets[name][place] for name in ("mean", "mean_low", "mean_high")]
    cells = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in (mean, *triples)]
    return " & ".join([escape_latex(sets["titles"][place]), *cells]) + r" \\"


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
