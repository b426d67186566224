"""The findings of a comparison, in sentences that a reader can check against the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.comparison.families import tell_graphs, tell_layers, tell_p
from clew.hallucination.comparison.measuring import (
    FEWEST,
    Labels,
    Measured,
    count_rarer,
    is_significant,
    pick_best,
)

# With fewer answers of a class, 95% intervals contain the true value in about 92% of cases or less.
_FEW = 30
_CHANCE = 0.5


@dataclass(frozen=True, kw_only=True)
class Where:
    """On which answers the best method was chosen, and what its AUROC, `{}`, was measured on;
    `can_fold`: the answers could be tested in folds instead."""

    chosen_on: str = "validation"
    measured: str = "a test AUROC of {}"
    can_fold: bool = True


def find_sentences(
    measured: Sequence[Measured], labels: Labels, *, graph_methods: Sequence[str], where: Where
) -> dict[str, str]:
    """Sentences by topic for a finished comparison, whose rows have their differences;
    `graph_methods` are those that read attention graphs. Topics without a finding are omitted."""
    best = pick_best(measured)
    told = {
        "best": _tell_best(best, labels, where),
        "rivals": _tell_rivals(best, measured) if labels.supports_tests else None,
        "baselines": _tell_baselines(best, measured, labels),
        "graphs": tell_graphs(measured, graph_methods, labels),
        "layers": tell_layers(measured, labels),
        "few_to_choose_on": _tell_few_to_choose_on(labels.validation),
        "few_to_measure_on": _tell_few_to_measure_on(labels.test),
        "advice": _advise(labels, where),
    }
    return {about: sentence for about, sentence in told.items() if sentence is not None}


def _tell_best(best: Measured, labels: Labels, where: Where) -> str:
    row = best.row
    reached = where.measured.format(f"{row['test_auroc']:.3f} {_interval(row)}")
    if not labels.supports_choice:
        return (
            f"There are too few answers to choose a best method. {row['title']}, with the highest "
            f"AUROC on {where.chosen_on}, reaches {reached}."
        )
    found = f"The best method on {where.chosen_on}, {row['title']}, reaches {reached}"
    if row["test_auroc_ci"][0] <= _CHANCE:
        return f"{found}: it is not shown to detect hallucinated answers better than chance."
    versus = row["versus_perplexity"]
    if row["method"] == "perplexity":
        return f"{found}: no method beats perplexity there."
    if versus is None:
        return f"{found}; perplexity was not evaluated."
    if versus["p_value"] is None:
        return f"{found}, {versus['difference']:+.3f} compared with perplexity."
    if not is_significant(versus):
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
        if one is not best and not is_significant(one.row["versus_best"])
    ]
    if not near:
        return None
    differences = "difference" if len(near) == 1 else "differences"
    verb = "is" if len(near) == 1 else "are"
    return (
        f"Its {differences} from {_listed(near)} {verb} not statistically significant (p >= 0.05)."
    )


def _tell_baselines(best: Measured, measured: Sequence[Measured], labels: Labels) -> str | None:
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
    if not labels.supports_tests:
        return f"Baselines that do not use the model: {reached}."
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
    return versus["difference"] < 0 and is_significant(versus)


def _tell_few_to_choose_on(labels: np.ndarray) -> str | None:
    """A warning if there are few validation answers: layer, regularization, threshold and the best
    method all depend on them."""
    few = _count_few(labels)
    if few is None:
        return None
    return (
        f"The validation answers include only {few}: methods, their layers and their thresholds "
        "are chosen on them, so the choice is uncertain."
    )


def _tell_few_to_measure_on(labels: np.ndarray) -> str | None:
    """A warning if there are few test answers: bootstrap intervals are unreliable if a class is
    small."""
    few = _count_few(labels)
    if few is None:
        return None
    return (
        f"The test answers include only {few}: the confidence intervals are unreliable with so few "
        "answers. Use more questions before relying on these results."
    )


def _advise(labels: Labels, where: Where) -> str | None:
    """What to do about a class with hardly any answers."""
    if labels.supports_choice and labels.supports_tests:
        return None
    lacks_correct = 2 * (labels.test > 0).sum() >= len(labels.test)
    easier = "a larger model, easier questions" if lacks_correct else "harder questions"
    folds = ", or test every answer once with `folds=5`" if where.can_fold else ""
    return (
        f"With fewer than {FEWEST} answers of a class there are no p-values, and no method is "
        f"called the best. Use {easier} or more of them{folds}."
    )


def _count_few(labels: np.ndarray) -> str | None:
    """The number of answers of the rarer class; None if there are enough."""
    found = count_rarer(labels)
    if found >= _FEW:
        return None
    rarer = "hallucinated" if (labels > 0).sum() == found else "correct"
    return f"{found} {rarer} {'answer' if found == 1 else 'answers'}"


def _interval(row: dict[str, Any]) -> str:
    low, high = row["test_auroc_ci"]
    return f"[{low:.3f}, {high:.3f}]"


def _listed(words: Sequence[str]) -> str:
    """Join titles, with semicolons if one contains a comma."""
    *some, last = words
    comma = "; " if any("," in word for word in words) else ", "
    return f"{comma.join(some)} and {last}" if some else last


def _p(versus: dict[str, float]) -> str:
    return tell_p(versus["p_value"])
