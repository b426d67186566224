"""The findings of a comparison, in sentences that a reader can check against the table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.hallucination.comparison.measuring import (
    FEWEST,
    SIGNIFICANT,
    Labels,
    Measured,
    count_rarer,
    is_significant,
    pick_best,
)
from clew.metrics import compare_seeds

# With fewer answers of a class, 95% intervals contain the true value in about 92% of cases or less.
_FEW = 30
_CHANCE = 0.5
# Layer, regularization, threshold and the best method all depend on the validation answers.
_FEW_TO_CHOOSE_ON = (
    "The validation answers include only {}: methods, their layers and their thresholds are chosen "
    "on them, so the choice is uncertain."
)
# Bootstrap intervals are unreliable if a class is small.
_FEW_TO_MEASURE_ON = (
    "The test answers include only {}: the confidence intervals are unreliable with so few "
    "answers. Use more questions before relying on these results."
)
_FEWEST_SEEDS = 3
# By what they read. A method in neither group does not count here.
_ONE_LAYER = frozenset({"linear_probe", "linear_probe_middle", "saplma"})
_ALL_LAYERS = frozenset({"linear_probe_pca", "lstm", "act_vit"})


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
        "layers": _tell_layers(measured, labels),
        "few_to_choose_on": _warn_of_few(labels.validation, _FEW_TO_CHOOSE_ON),
        "few_to_measure_on": _warn_of_few(labels.test, _FEW_TO_MEASURE_ON),
        "advice": _advise(labels, where),
    }
    return {about: sentence for about, sentence in told.items() if sentence is not None}


def _tell_best(best: Measured, labels: Labels, where: Where) -> str:
    row, (low, high) = best.row, best.row["test_auroc_ci"]
    reached = where.measured.format(f"{row['test_auroc']:.3f} [{low:.3f}, {high:.3f}]")
    if not labels.supports_choice:
        return (
            f"There are too few answers to choose a best method. {row['title']}, with the highest "
            f"AUROC on {where.chosen_on}, reaches {reached}."
        )
    found = f"The best method on {where.chosen_on}, {row['title']}, reaches {reached}"
    versus = row["versus_perplexity"]
    if row["method"] == "perplexity":
        return f"{found}: no method beats perplexity there."
    if low <= _CHANCE:
        return f"{found}: it is not shown to detect hallucinated answers better than chance."
    if versus is None:
        return f"{found}; perplexity was not evaluated."
    if versus["p_value"] is None:
        return f"{found}, {versus['difference']:+.3f} compared with perplexity."
    if not is_significant(versus):
        return (
            f"{found}. The difference from perplexity is not statistically significant "
            f"({versus['difference']:+.3f}, {_tell_p(versus['p_value'])})."
        )
    verb = "beats" if versus["difference"] > 0 else "is worse than"
    difference = f"{abs(versus['difference']):.3f} ({_tell_p(versus['p_value'])})"
    return f"{found} and {verb} perplexity by {difference}."


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
    near = [
        row["title"]
        for row in rows
        if row["versus_best"]["difference"] >= 0 or not is_significant(row["versus_best"])
    ]
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


def _warn_of_few(labels: np.ndarray, words: str) -> str | None:
    """The sentence with the number of answers of the rarer class; None if there are enough."""
    found = count_rarer(labels)
    if found >= _FEW:
        return None
    rarer = "hallucinated" if (labels > 0).sum() == found else "correct"
    return words.format(f"{found} {rarer} {'answer' if found == 1 else 'answers'}")


def _listed(words: Sequence[str]) -> str:
    """Join titles, with semicolons if one contains a comma."""
    *some, last = words
    comma = "; " if any("," in word for word in words) else ", "
    return f"{comma.join(some)} and {last}" if some else last


def tell_contest(
    subject: str, rest: str, ours: Sequence[Measured], others: Sequence[Measured], labels: Labels
) -> str | None:
    """Compare the best of two families of methods on the test answers, each chosen by the mean
    validation AUROC; `subject` starts the sentence, `rest` is one of the others. A network's result
    depends on its seed, so the sentence rests on all seeds, and on networks that learned something.
    None if one family is missing or there are too few answers."""
    if not ours or not others or not (labels.supports_tests and labels.supports_choice):
        return None
    first, second = (max(some, key=lambda one: one.row["val_auroc"]) for some in (ours, others))
    reasons = [reason for one in (first, second) if (reason := _why_unsure(one))]
    told = f"{_describe(first)}; the best {rest} on validation, {_describe(second)}"
    if reasons:
        return (
            f"{subject}: no conclusion, because {' and '.join(reasons)}. The best of them on "
            f"validation, {told}."
        )
    found = compare_seeds(labels.test, first.seed_scores, second.seed_scores, groups=labels.groups)
    verdict = "help" if found.difference > 0 else "hurt"
    if found.p_value >= SIGNIFICANT:
        verdict = "make no statistically significant difference"
    return (
        f"{subject} {verdict}: the best of them on validation, {told} (difference "
        f"{found.difference:+.3f} [{found.low:+.3f}, {found.high:+.3f}], {_tell_p(found.p_value)})."
    )


def tell_graphs(
    measured: Sequence[Measured], graph_methods: Sequence[str], labels: Labels
) -> str | None:
    """Whether attention graphs help: networks with them against networks without them, or against
    all methods if there is no such network. A probe that beats both says nothing about graphs."""
    with_graphs = [one for one in measured if one.row["method"] in graph_methods]
    without = [one for one in measured if one.row["method"] not in graph_methods]
    networks = [one for one in without if one.row["family"] == "network"]
    rest = f"{'network' if networks else 'method'} without graphs"
    subject = "Networks on attention graphs"
    return tell_contest(subject, rest, with_graphs, networks or without, labels)


def _tell_layers(measured: Sequence[Measured], labels: Labels) -> str | None:
    """Whether reading all layers' states beats reading one layer's."""
    many = [one for one in measured if one.row["method"] in _ALL_LAYERS]
    single = [one for one in measured if one.row["method"] in _ONE_LAYER]
    subject = "Methods on the states of all layers"
    return tell_contest(subject, "method on one layer", many, single, labels)


def _why_unsure(one: Measured) -> str | None:
    row = one.row
    if row["family"] != "network":
        return None
    if row["seeds"] < _FEWEST_SEEDS:
        return f"{row['title']} was trained with fewer than {_FEWEST_SEEDS} seeds"
    epoch = row["chosen"].get("epoch")
    # The first epoch; of several trials, in most of them.
    epochs = epoch if isinstance(epoch, list) else [epoch]
    if np.median([1 if at == 1 else 2 for at in epochs]) == 1:
        return f"{row['title']} was best after its first epoch, so it hardly learned"
    return None


def _describe(one: Measured) -> str:
    row = one.row
    if row["test_auroc_std"] is None:
        return f"{row['title']}, reaches {row['test_auroc']:.3f}"
    seeds = f"{row['test_auroc_mean']:.3f} ± {row['test_auroc_std']:.3f} over {row['seeds']} seeds"
    return f"{row['title']}, reaches {seeds}"


def _tell_p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
