"""The findings of a comparison, in sentences that a reader can check against the table."""

from collections.abc import Sequence

import numpy as np

from clew.hallucination.comparison.evaluation import (
    SIGNIFICANT,
    Evaluation,
    Part,
    differ,
    is_significant,
    pick_best,
)
from clew.hallucination.comparison.trial import FEWEST, Labels, Measured, count_rarer
from clew.metrics.ranking import compare_seeds

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
_SHOWN_NAMES = 3
# By what they read. A method in neither group does not count here.
_ONE_LAYER = frozenset({"linear_probe", "linear_probe_middle", "saplma"})
_ALL_LAYERS = frozenset({"linear_probe_pca", "lstm", "act_vit"})


# By the kind of the plan: where the best method was chosen, and what its AUROC was measured on.
_WHERE = {
    "sets": (
        "the validation splits of the left-out sets",
        "a mean AUROC of {auroc} over {parts} question sets that it was not trained on",
    ),
    "folds": ("the validation folds", "an AUROC of {auroc} on all answers, in {parts} folds"),
}
_ONE_SPLIT = ("validation", "a test AUROC of {auroc}")


def chosen_on(kind: str) -> str:
    """On which answers the best method of a plan was chosen."""
    return _WHERE.get(kind, _ONE_SPLIT)[0]


def find_sentences(
    measured: Sequence[Measured],
    labels: Labels,
    *,
    graph_methods: Sequence[str],
    kind: str = "one split",
    parts: int = 1,
) -> dict[str, str]:
    """Sentences by topic for a finished comparison, whose rows have their differences; `kind` is
    that of its plan, and `parts` how many trials the table sums up. `graph_methods` are those that
    read attention graphs. Topics without a finding are omitted."""
    best = pick_best(measured)
    told = {
        "best": _tell_best(best, labels, kind, parts),
        "rivals": _tell_rivals(best, measured) if labels.supports_tests else None,
        "baselines": _tell_baselines(best, measured, labels),
        "graphs": tell_graphs(measured, graph_methods, labels),
        "layers": _tell_layers(measured, labels),
        "few_to_choose_on": _warn_of_few(labels.validation, _FEW_TO_CHOOSE_ON),
        "few_to_measure_on": _warn_of_few(labels.test, _FEW_TO_MEASURE_ON),
        "advice": _advise(labels, can_fold=kind == "one split"),
    }
    return {about: sentence for about, sentence in told.items() if sentence is not None}


def _tell_best(best: Measured, labels: Labels, kind: str, parts: int) -> str:
    """Two sentences: what the best method reaches, and whether it was worth the training."""
    row, (low, high) = best.row, best.row["test_auroc_ci"]
    chosen, measured = _WHERE.get(kind, _ONE_SPLIT)
    reached = measured.format(auroc=f"{row['test_auroc']:.3f} [{low:.3f}, {high:.3f}]", parts=parts)
    if not labels.supports_choice:
        return (
            f"There are too few answers to choose a best method. {row['title']}, with the highest "
            f"AUROC on {chosen}, reaches {reached}."
        )
    found = f"The best method on {chosen}, {row['title']}, reaches {reached}."
    versus = row["versus_perplexity"]
    if row["method"] == "perplexity":
        return f"{found} No method beats perplexity there."
    if low <= _CHANCE:
        return f"{found} It is not shown to detect hallucinated answers better than chance."
    if versus is None:
        return f"{found} Perplexity was not evaluated."
    difference = f"{versus['difference']:+.3f}"
    if versus["p_value"] is None:
        return f"{found} That is {difference} compared with perplexity."
    if not is_significant(versus):
        told = f"{difference}, {_tell_p(versus['p_value'])}"
        return f"{found} It is not shown to differ from perplexity ({told})."
    verb = "beats" if versus["difference"] > 0 else "is worse than"
    difference = f"{abs(versus['difference']):.3f} ({_tell_p(versus['p_value'])})"
    return f"{found} It {verb} perplexity by {difference}."


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


def _advise(labels: Labels, *, can_fold: bool) -> str | None:
    """What to do about a class with hardly any answers."""
    if labels.supports_choice and labels.supports_tests:
        return None
    lacks_correct = 2 * (labels.test > 0).sum() >= len(labels.test)
    easier = "a larger model, easier questions" if lacks_correct else "harder questions"
    folds = ", or test every answer once with `folds=5`" if can_fold else ""
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
    found = compare_seeds(labels.test, first.seed_scores, second.seed_scores, **labels.dependence)
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


def list_names(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    if len(names) <= _SHOWN_NAMES + 1:
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{', '.join(names[:_SHOWN_NAMES])} and {len(names) - _SHOWN_NAMES} more"
