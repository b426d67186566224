"""Turn scores into the rows of the table: calibration and threshold on validation, metrics on test.
Nothing reads a test label before everything is chosen. The row of several trials is the mean over
question sets, or that of all answers, each tested in the fold that does not train on it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy  # its modules load on first use

from clew.base.errors import ClewError, InputError
from clew.hallucination.comparison.methods import AnyMethod
from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import (
    Excluded,
    Labels,
    Measured,
    Trial,
    TrialResult,
    count_rarer,
)
from clew.hallucination.detectors.probes.method import Outcome
from clew.hallucination.samples.mixed import MixedAnswers
from clew.hallucination.samples.splits import Balance
from clew.loading.splits import SPLIT_NAMES
from clew.metrics.calibration import PlattScale
from clew.metrics.measures import best_threshold, measure_scores
from clew.metrics.ranking import auroc, bootstrap_auroc, compare_paired

SIGNIFICANT = 0.05
_BESIDE = ("auprc", "f1", "accuracy", "ece", "aurc")


def measure_method(
    method: AnyMethod, seeds: Sequence[Outcome], labels: Labels, *, store: str, bytes_: float
) -> Measured:
    """The method's row for the test split of one store, without the pairwise differences."""
    on_validation = [auroc(labels.validation, seed.validation) for seed in seeds]
    middle = pick_median(on_validation)
    seed = seeds[middle]
    scale = PlattScale.fit(labels.validation, seed.validation)
    validation = scale.probabilities(seed.validation)
    every = tuple(one.tests[store][labels.kept] for one in seeds)
    scores = every[middle]
    test = scale.probabilities(scores)
    threshold = best_threshold(labels.validation, validation)
    measures = measure_scores(
        labels.test, test, threshold=threshold, scores=scores, clusters=labels.clusters
    )
    row = {
        "method": method.name,
        "title": method.title,
        "family": method.family,
        "val_auroc": on_validation[middle],
        "test_auroc": measures.auroc,
        "test_auroc_ci": list(measures.auroc_ci),
        **{f"test_{name}": getattr(measures, name) for name in _BESIDE},
        "threshold": threshold,
        **over_seeds(method.is_seeded, [auroc(labels.test, one) for one in every]),
        "versus_best": None,
        "versus_perplexity": None,
        "parameters": seed.parameters,
        "train_seconds": seed.train_seconds,
        "ms_per_answer": seed.ms_per_answer,
        "bytes_per_answer": bytes_,
        "chosen": seed.chosen,
        "by_layer": seed.by_layer,
    }
    return Measured(
        row=row,
        place=middle,
        calibration=scale,
        test_scores=scores,
        seed_scores=every,
        validation_probabilities=validation,
        test_probabilities=test,
        plan=seed.plan,
    )


def pick_median(values: Sequence[float]) -> int:
    """The index of the median, of the lower one if there are two, so that a lucky run is not
    chosen."""
    return int(np.argsort(values, kind="stable")[(len(values) - 1) // 2])


def pick_best(measured: Sequence[Measured]) -> Measured:
    """The one with the highest validation AUROC."""
    return max(measured, key=lambda one: one.row["val_auroc"])


def add_differences(measured: Sequence[Measured], labels: Labels) -> None:
    """Fill in how each method differs from the best on validation and from perplexity."""
    best = pick_best(measured)
    plain = next((one for one in measured if one.row["method"] == "perplexity"), None)
    for one in measured:
        one.row["versus_best"] = differ(labels, one, best)
        one.row["versus_perplexity"] = None if plain is None else differ(labels, one, plain)


def differ(labels: Labels, one: Measured, other: Measured) -> dict[str, Any] | None:
    """By how much the first method's test AUROC is higher; None if both are the same method. There
    is no p-value if the test answers are too few."""
    if one is other:
        return None
    found = compare_paired(labels.test, one.test_scores, other.test_scores, **labels.dependence)
    return {**asdict(found), "p_value": found.p_value if labels.supports_tests else None}


def is_significant(versus: dict[str, Any] | None) -> bool:
    p_value = None if versus is None else versus["p_value"]
    return p_value is not None and p_value < SIGNIFICANT


def over_seeds(is_seeded: bool, test_aurocs: Sequence[float]) -> dict[str, Any]:
    if not is_seeded:
        return {"seeds": 1, "test_auroc_mean": None, "test_auroc_std": None}
    spread = float(np.std(test_aurocs, ddof=1)) if len(test_aurocs) > 1 else None
    return {
        "seeds": len(test_aurocs),
        "test_auroc_mean": float(np.mean(test_aurocs)),
        "test_auroc_std": spread,
    }


_MEANS = (
    *("val_auroc", "test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc"),
    *("threshold", "train_seconds", "ms_per_answer", "bytes_per_answer"),
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The results of one trial on the test split of one of its stores."""

    trial: Trial
    store: Store
    measured: dict[str, Measured]

    @cached_property
    def labels(self) -> Labels:
        return self.trial.labels(self.store)

    @property
    def own_splits(self) -> np.ndarray:
        """The splits that the evaluated answers have in their own folder."""
        assert isinstance(self.store.data, MixedAnswers)
        splits = [one.index.splits for one in self.store.data.splits["test"]]
        return np.concatenate(splits)[self.labels.kept]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`measured` are the rows of the table, with their differences, and `labels` those of the
    answers of `parts`: of one trial, or of those that a pooled table sums up."""

    plan: Plan
    results: tuple[TrialResult, ...]
    measured: list[Measured]
    labels: Labels
    parts: tuple[Part, ...]
    excluded: list[Excluded]

    @property
    def trial(self) -> Trial:
        """The one of the table, or the one whose detectors are kept."""
        return self.plan.final if self.plan.is_pooled else self.parts[0].trial

    def find(self, trial: Trial) -> TrialResult | None:
        return next((result for result in self.results if result.trial is trial), None)


def evaluate(plan: Plan, results: Sequence[TrialResult]) -> Evaluation:
    """The table of a plan whose trials have run. Raises InputError if it has no row."""
    excluded = [one for result in results for one in result.excluded]
    every = [
        Part(trial=result.trial, store=store, measured={one.row["method"]: one for one in rows})
        for result in results
        for store in result.trial.tests
        for rows in [result.measured[store.name]]
    ]
    # Of one trial, the first store that any method was tested on.
    one = next(part for part in every if part.measured)
    parts = tuple(p for p in every if p.trial in plan.parts) if plan.is_pooled else (one,)
    labels, measured = parts[0].labels, list(parts[0].measured.values())
    if plan.is_pooled:
        names = list(dict.fromkeys(name for part in parts for name in part.measured))
        whole = [name for name in names if all(name in part.measured for part in parts)]
        excluded += [_explain_gap(parts, name) for name in names if name not in whole]
        refuse_empty(bool(whole), excluded, " in all trials")
        labels = _join_labels(parts, of_sets=plan.kind == "sets")
        join = _mean_over_sets if plan.kind == "sets" else _join_folds
        measured = [join(parts, [part.measured[name] for part in parts], labels) for name in whole]
    add_differences(measured, labels)
    return Evaluation(
        plan=plan,
        results=tuple(results),
        measured=measured,
        labels=labels,
        parts=parts,
        excluded=excluded,
    )


def refuse_empty(has_rows: bool, excluded: Sequence[Excluded], where: str = "") -> None:
    if not has_rows:
        reasons = "\n  ".join(f"{one.title}: {one.reason}" for one in excluded)
        kind = ClewError if any(one.is_fault for one in excluded) else InputError
        raise kind(f"no method could be run{where}:\n  {reasons}")


def describe_pooled(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """By method, what a detector that is trained on everything keeps of the pooled table: its
    figures on sets, or answers, that detectors like it were not trained on."""
    if not evaluation.plan.is_pooled:
        return {}
    key = "leave_one_out" if evaluation.plan.kind == "sets" else "out_of_fold"
    return {one.row["method"]: {key: _describe(evaluation, one)} for one in evaluation.measured}


def _describe(evaluation: Evaluation, one: Measured) -> dict[str, Any]:
    names = ("test_auroc", "test_auroc_ci", "val_auroc")
    found = {name: one.row[name] for name in names}
    if evaluation.plan.kind != "sets":
        return found
    rows = {part.store.name: part.measured[one.row["method"]].row for part in evaluation.parts}
    sets = {
        part.store.name: {
            **{name: rows[part.store.name][name] for name in names[:2]},
            **asdict(Balance.of(part.labels.test)),
        }
        for part in evaluation.parts
    }
    return {**found, "sets": sets}


def _explain_gap(parts: Sequence[Part], name: str) -> Excluded:
    missing = [part.store.name for part in parts if name not in part.measured]
    found = next(part.measured[name] for part in parts if name in part.measured)
    return Excluded(
        method=name,
        title=found.row["title"],
        reason=f"it has no result for {', '.join(missing)}, so there is no mean",
    )


def _join_labels(parts: Sequence[Part], *, of_sets: bool) -> Labels:
    """All test answers. What the best method is chosen on: left-out sets by the answers of their
    own validation splits, folds by those of each fold's validation split."""
    test = np.concatenate([part.labels.test for part in parts])
    chosen_on = [
        part.labels.test[_is_own_validation(part)] if of_sets else part.labels.validation
        for part in parts
    ]
    groups = np.repeat(np.arange(len(parts)), [len(part.labels.test) for part in parts])
    return Labels(
        validation=np.concatenate(chosen_on),
        test=test,
        kept=np.arange(len(test)),
        groups=groups if of_sets else None,
        clusters=join_clusters(parts),
    )


def join_clusters(parts: Sequence[Part]) -> np.ndarray | None:
    """Those of each part are numbered after those of the parts before it."""
    known = [part.labels.clusters for part in parts]
    if any(one is None for one in known):
        return None
    starts = np.cumsum([0, *(int(one.max(initial=-1)) + 1 for one in known if one is not None)])
    pairs = zip(known, starts, strict=False)
    return np.concatenate([one + start for one, start in pairs if one is not None])


def _is_own_validation(part: Part) -> np.ndarray:
    return part.own_splits == SPLIT_NAMES.index("validation")


def _mean_over_sets(
    parts: Sequence[Part], measured: Sequence[Measured], labels: Labels
) -> Measured:
    """Every set counts the same. The validation AUROC is that of the left-out sets' own validation
    splits: it is of transfer too, and no method was fitted on them."""
    scores = np.concatenate([one.test_scores for one in measured])
    joined = _join(measured, scores, labels, [one.seed_scores for one in measured])
    chosen_on = _mean_on(parts, measured, _is_own_validation)
    if chosen_on is not None:
        joined.row["val_auroc"] = chosen_on
    own = SPLIT_NAMES.index("test")
    joined.row["test_split_auroc"] = _mean_on(parts, measured, lambda part: part.own_splits == own)
    return joined


def _join_folds(_: Sequence[Part], measured: Sequence[Measured], labels: Labels) -> Measured:
    """Answers are ranked within their fold: the scores of two detectors have different scales."""
    ranks = np.concatenate([rank_scores(one.test_scores) for one in measured])
    seeds = [tuple(rank_scores(scores) for scores in one.seed_scores) for one in measured]
    return _join(measured, ranks, labels, seeds)


def _mean_on(
    parts: Sequence[Part], measured: Sequence[Measured], choose: Callable[[Part], np.ndarray]
) -> float | None:
    """The mean AUROC over the sets on some of their answers; sets that lack a class there do not
    count."""
    found = []
    for part, one in zip(parts, measured, strict=True):
        some = choose(part)
        if count_rarer(part.labels.test[some]):
            found.append(auroc(part.labels.test[some], one.test_scores[some]))
    return float(np.mean(found)) if found else None


def rank_scores(scores: np.ndarray) -> np.ndarray:
    """Between 0 and 1; ties get the mean of their ranks."""
    return (scipy.stats.rankdata(scores) - 0.5) / len(scores)


def _join_chosen(chosen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A value that all trials chose, or the list of those that they chose."""
    joined = {}
    for name in chosen[0]:
        values = list(dict.fromkeys(str(one.get(name)) for one in chosen))
        joined[name] = chosen[0][name] if len(values) == 1 else [one.get(name) for one in chosen]
    return joined


def _join_layers(by_layer: Sequence[dict[str, list[float]] | None]) -> dict[str, Any] | None:
    """The mean AUROC of every layer."""
    known = [one for one in by_layer if one is not None]
    if len(known) < len(by_layer):
        return None
    return {split: np.mean([one[split] for one in known], axis=0).tolist() for split in known[0]}


def _join(
    measured: Sequence[Measured],
    scores: np.ndarray,
    labels: Labels,
    seeds: Sequence[tuple[np.ndarray, ...]],
) -> Measured:
    """The same method in several trials as one; `scores` and `seeds` are comparable over them."""
    rows = [one.row for one in measured]
    every = tuple(np.concatenate(one) for one in zip(*seeds, strict=True))
    aurocs = [auroc(labels.test, one, groups=labels.groups) for one in (scores, *every)]
    row = {
        **rows[0],
        **{name: float(np.mean([row[name] for row in rows])) for name in _MEANS},
        "test_auroc": aurocs[0],
        "test_auroc_ci": list(bootstrap_auroc(labels.test, scores, **labels.dependence)),
        **over_seeds(rows[0]["test_auroc_mean"] is not None, aurocs[1:]),
        "chosen": _join_chosen([row["chosen"] for row in rows]),
        "by_layer": _join_layers([row["by_layer"] for row in rows]),
    }
    return Measured(
        row=row,
        place=measured[0].place,
        calibration=measured[0].calibration,
        test_scores=scores,
        seed_scores=every,
        validation_probabilities=np.zeros(0),
        test_probabilities=np.concatenate([one.test_probabilities for one in measured]),
        plan=measured[0].plan,
    )
