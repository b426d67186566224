"""The findings of a comparison, in sentences that a reader can check against the table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.hallucination.comparison.rows import Labels, Measured, differ, pick_best

_SURE = 0.05
# With fewer answers of a class, 95% intervals contain the true value in about 92% of cases or less.
_FEW = 30


def find_sentences(
    measured: Sequence[Measured], labels: Labels, *, graph_methods: Sequence[str]
) -> dict[str, str]:
    """Sentences by topic for a finished comparison, whose rows have their differences;
    `graph_methods` are those that read attention graphs. Topics without a finding are omitted."""
    best = pick_best(measured)
    with_graphs = [one for one in measured if one.row["method"] in graph_methods]
    without = [one for one in measured if one.row["method"] not in graph_methods]
    told = {
        "best": _tell_best(best),
        "rivals": _tell_rivals(best, measured),
        "baselines": _tell_baselines(best, measured),
        "graphs": _tell_graphs(with_graphs, without, labels.test),
        "few_to_choose_on": _tell_few_to_choose_on(labels.validation),
        "few_to_measure_on": _tell_few_to_measure_on(labels.test),
    }
    return {about: sentence for about, sentence in told.items() if sentence is not None}


def _tell_best(best: Measured) -> str:
    row = best.row
    reached = f"{row['test_auroc']:.3f} {_interval(row)}"
    found = f"The best method on validation, {row['title']}, reaches a test AUROC of {reached}"
    versus = row["versus_perplexity"]
    if row["method"] == "perplexity":
        return f"{found}: no method beats perplexity on validation."
    if versus is None:
        return f"{found}; perplexity was not evaluated."
    if versus["p_value"] >= _SURE:
        return (
            f"{found}. The difference from perplexity is not statistically significant "
            f"({versus['difference']:+.3f}, {_p(versus)})."
        )
    verb = "beats" if versus["difference"] > 0 else "is worse than"
    return f"{found} and {verb} perplexity by {abs(versus['difference']):.3f} ({_p(versus)})."


def _tell_rivals(best: Measured, measured: Sequence[Measured]) -> str | None:
    """Which methods are not significantly worse than the best."""
    near = [
        one.row["title"]
        for one in measured
        if one is not best and one.row["versus_best"]["p_value"] >= _SURE
    ]
    if not near:
        return None
    differences = "difference" if len(near) == 1 else "differences"
    verb = "is" if len(near) == 1 else "are"
    return (
        f"Its {differences} from {_listed(near)} {verb} not statistically significant (p >= 0.05)."
    )


def _tell_baselines(best: Measured, measured: Sequence[Measured]) -> str | None:
    """The AUROC that baselines reach without using the model."""
    if best.row["family"] == "baseline":
        return (
            "The best method does not use the model's internals at all, so it does not detect "
            "hallucinations."
        )
    rows = [one.row for one in measured if one.row["family"] == "baseline"]
    if not rows:
        return None
    reached = _listed([f"{row['title']} reaches {row['test_auroc']:.3f}" for row in rows])
    near = [row["title"] for row in rows if not _is_below(row)]
    if near:
        return (
            f"Baselines that do not use the model: {reached}. The best method is not "
            f"significantly better than {_listed(near)}, so it may not detect hallucinations at "
            "all."
        )
    return (
        f"Baselines that do not use the model: {reached}. The best method is significantly "
        "better (p < 0.05)."
    )


def _is_below(row: Mapping[str, Any]) -> bool:
    """Whether the method is significantly worse than the best, by the paired bootstrap."""
    versus = row["versus_best"]
    return versus["difference"] < 0 and versus["p_value"] < _SURE


def _tell_graphs(
    with_graphs: Sequence[Measured], without: Sequence[Measured], labels: np.ndarray
) -> str | None:
    """The best method with and without graphs by validation, compared on test."""
    if not with_graphs or not without:
        return None
    ours, other = pick_best(with_graphs), pick_best(without)
    versus = differ(labels, ours, other)
    assert versus is not None
    told = (
        f"the best of them, {ours.row['title']}, reaches {ours.row['test_auroc']:.3f}; the best "
        f"method without graphs, {other.row['title']}, reaches {other.row['test_auroc']:.3f} "
        f"(difference {versus['difference']:+.3f}, {_p(versus)})."
    )
    if versus["p_value"] >= _SURE:
        return f"Networks on attention graphs make no statistically significant difference: {told}"
    verb = "help" if versus["difference"] > 0 else "hurt"
    return f"Networks on attention graphs {verb}: {told}"


def _tell_few_to_choose_on(labels: np.ndarray) -> str | None:
    """A warning if there are few validation answers: layer, regularization, threshold and the best
    method all depend on them."""
    few = _count_few(labels)
    if few is None:
        return None
    return (
        f"The validation split has only {few}: the best method, its layer and its threshold "
        "were selected on it, so the selection is uncertain."
    )


def _tell_few_to_measure_on(labels: np.ndarray) -> str | None:
    """A warning if there are few test answers: bootstrap intervals are unreliable if a class is
    small."""
    few = _count_few(labels)
    if few is None:
        return None
    return (
        f"The test split has only {few}: the confidence intervals are unreliable with so few "
        "answers. Use more questions before relying on these results."
    )


def _count_few(labels: np.ndarray) -> str | None:
    """The number of answers of the rarer class; None if there are enough."""
    hallucinated = int((labels > 0).sum())
    counts = {"correct": len(labels) - hallucinated, "hallucinated": hallucinated}
    rarer = min(counts, key=lambda kind: counts[kind])
    if counts[rarer] >= _FEW:
        return None
    return f"{counts[rarer]} {rarer} {'answer' if counts[rarer] == 1 else 'answers'}"


def _interval(row: dict[str, Any]) -> str:
    low, high = row["test_auroc_ci"]
    return f"[{low:.3f}, {high:.3f}]"


def _listed(words: Sequence[str]) -> str:
    """Join titles, with semicolons if one contains a comma."""
    *some, last = words
    comma = "; " if any("," in word for word in words) else ", "
    return f"{comma.join(some)} and {last}" if some else last


def _p(versus: dict[str, float]) -> str:
    value = versus["p_value"]
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
