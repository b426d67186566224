"""Whether one family of methods does better than another. A network's result depends on its seed,
so a sentence about a family rests on all seeds, and on networks that learned something."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clew.hallucination.comparison.measuring import SIGNIFICANT, Labels, Measured
from clew.metrics import Difference, compare_seeds

_FEWEST_SEEDS = 3
# By what they read. A method in neither group does not count here.
_ONE_LAYER = frozenset({"linear_probe", "linear_probe_middle", "saplma"})
_ALL_LAYERS = frozenset({"linear_probe_pca", "lstm", "act_vit"})


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The families: `subject` starts a sentence, `rest` is one of the others."""

    subject: str
    rest: str


def tell_contest(
    about: Contest, ours: Sequence[Measured], others: Sequence[Measured], labels: Labels
) -> str | None:
    """Compare the best of two families on the test answers, each chosen by the mean validation
    AUROC. None if one family is missing or there are too few answers."""
    if not ours or not others or not (labels.supports_tests and labels.supports_choice):
        return None
    first, second = (max(some, key=lambda one: one.row["val_auroc"]) for some in (ours, others))
    unsure = [_why_unsure(one) for one in (first, second)]
    reasons = [reason for reason in unsure if reason]
    told = f"{_describe(first)}; the best {about.rest} on validation, {_describe(second)}"
    if reasons:
        return (
            f"{about.subject}: no conclusion, because {' and '.join(reasons)}. The best of them on "
            f"validation, {told}."
        )
    found = compare_seeds(labels.test, first.seed_scores, second.seed_scores, groups=labels.groups)
    return (
        f"{about.subject} {_verdict(found)}: the best of them on validation, {told} "
        f"({_tell(found)})."
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
    about = Contest(subject="Networks on attention graphs", rest=rest)
    return tell_contest(about, with_graphs, networks or without, labels)


def tell_layers(measured: Sequence[Measured], labels: Labels) -> str | None:
    """Whether reading all layers' states beats reading one layer's."""
    many = [one for one in measured if one.row["method"] in _ALL_LAYERS]
    single = [one for one in measured if one.row["method"] in _ONE_LAYER]
    about = Contest(subject="Methods on the states of all layers", rest="method on one layer")
    return tell_contest(about, many, single, labels)


def _why_unsure(one: Measured) -> str | None:
    row = one.row
    if row["family"] != "network":
        return None
    if row["seeds"] < _FEWEST_SEEDS:
        return f"{row['title']} was trained with fewer than {_FEWEST_SEEDS} seeds"
    if _stopped_at_once(row["chosen"].get("epoch")):
        return f"{row['title']} was best after its first epoch, so it hardly learned"
    return None


def _stopped_at_once(epoch: object) -> bool:
    """Whether the chosen epoch is the first; of several trials, in most of them."""
    epochs = epoch if isinstance(epoch, list) else [epoch]
    return float(np.median([1 if one == 1 else 2 for one in epochs])) == 1


def _describe(one: Measured) -> str:
    row = one.row
    if row["test_auroc_std"] is None:
        return f"{row['title']}, reaches {row['test_auroc']:.3f}"
    seeds = f"{row['test_auroc_mean']:.3f} ± {row['test_auroc_std']:.3f} over {row['seeds']} seeds"
    return f"{row['title']}, reaches {seeds}"


def _verdict(found: Difference) -> str:
    if found.p_value >= SIGNIFICANT:
        return "make no statistically significant difference"
    return "help" if found.difference > 0 else "hurt"


def _tell(found: Difference) -> str:
    interval = f"[{found.low:+.3f}, {found.high:+.3f}]"
    return f"difference {found.difference:+.3f} {interval}, {tell_p(found.p_value)}"


def tell_p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
