"""What a comparison found: the rows of its table, the answers behind them, and every trial. The row
of several trials is the mean over question sets, each tested by what was trained on the others, or
that of all answers of a store, each tested in the fold that does not train on it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clew.base.errors import ClewError, InputError
from clew.hallucination.comparison.measuring import (
    Labels,
    Measured,
    Row,
    add_differences,
    count_rarer,
    over_seeds,
)
from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Excluded, Trial, TrialResult
from clew.hallucination.samples.mixed import MixedAnswers
from clew.hallucination.samples.splits import Balance
from clew.loading.splits import SPLIT_NAMES
from clew.metrics import auroc, bootstrap_auroc

_MEANS = (
    *("test_auprc", "test_f1", "test_accuracy", "test_ece", "test_aurc"),
    *("threshold", "train_seconds", "ms_per_answer", "bytes_per_answer"),
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The results of one trial on its test split."""

    trial: Trial
    measured: dict[str, Measured]
    labels: Labels

    @property
    def store(self) -> Store:
        return self.trial.tests[0]

    @property
    def own_splits(self) -> np.ndarray:
        """The splits that the test answers have in their own folder."""
        assert isinstance(self.store.data, MixedAnswers)
        return np.concatenate([one.index.splits for one in self.store.data.splits["test"]])


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A store whose test answers are in the table; `kept` are those that are evaluated."""

    store: Store
    kept: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`measured` are the rows of the table, with their differences, and `labels` those of the
    answers of `tested`; `parts` are the trials that a pooled table sums up. `trial` is the one of
    the table, or the one whose detectors are kept."""

    plan: Plan
    results: tuple[TrialResult, ...]
    trial: Trial
    measured: list[Measured]
    labels: Labels
    tested: tuple[Tested, ...]
    parts: tuple[Part, ...]
    excluded: list[Excluded]

    def find(self, trial: Trial) -> TrialResult | None:
        return next((result for result in self.results if result.trial is trial), None)


def evaluate(plan: Plan, results: Sequence[TrialResult]) -> Evaluation:
    """The table of a plan whose trials have run. Raises InputError if it has no row."""
    excluded = [one for result in results for one in result.excluded]
    if plan.is_pooled:
        found = _pool(plan, results, excluded)
    else:
        trial, store, measured = next(
            (result.trial, store, result.measured[store.name])
            for result in results
            for store in result.trial.tests
            if result.measured[store.name]  # the first store that any method was tested on
        )
        labels = trial.labels(store)
        found = Evaluation(
            plan=plan,
            results=tuple(results),
            trial=trial,
            measured=measured,
            labels=labels,
            tested=(Tested(store=store, kept=labels.kept),),
            parts=(),
            excluded=excluded,
        )
    add_differences(found.measured, found.labels)
    return found


def _pool(plan: Plan, results: Sequence[TrialResult], excluded: list[Excluded]) -> Evaluation:
    """Sum up the trials of `plan.parts`. A method without a result in one of them is excluded."""
    by_trial = {id(result.trial): result for result in results}
    parts = tuple(_part(by_trial[id(trial)]) for trial in plan.parts)
    names = list(dict.fromkeys(name for part in parts for name in part.measured))
    whole = [name for name in names if all(name in part.measured for part in parts)]
    excluded = [*excluded, *(_explain_gap(parts, name) for name in names if name not in whole)]
    refuse_empty(bool(whole), excluded, " in all trials")
    of_sets = plan.kind == "sets"
    labels = _join_labels(parts, of_sets=of_sets)
    by_name = [[part.measured[name] for part in parts] for name in whole]
    return Evaluation(
        plan=plan,
        results=tuple(results),
        trial=plan.final,
        measured=[
            _mean_over_sets(parts, some, labels) if of_sets else _join_folds(some, labels)
            for some in by_name
        ],
        labels=labels,
        tested=tuple(Tested(store=part.store, kept=part.labels.kept) for part in parts),
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
    if not evaluation.parts:
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


def _part(result: TrialResult) -> Part:
    trial = result.trial
    [(name, rows)] = result.measured.items()
    [store] = trial.tests
    assert store.name == name
    measured = {one.row["method"]: one for one in rows}
    return Part(trial=trial, measured=measured, labels=trial.labels(store))


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
    )


def _is_own_validation(part: Part) -> np.ndarray:
    return part.own_splits[part.labels.kept] == SPLIT_NAMES.index("validation")


def _mean_over_sets(
    parts: Sequence[Part], measured: Sequence[Measured], labels: Labels
) -> Measured:
    """Every set counts the same. The validation AUROC is that of the left-out sets' own validation
    splits: it is of transfer too, and no method was fitted on them."""
    row = _join_rows(measured)
    scores = np.concatenate([one.test_scores for one in measured])
    chosen_on = _mean_on(parts, measured, _is_own_validation)
    fitted_on = float(np.mean([one.row["val_auroc"] for one in measured]))
    row["val_auroc"] = fitted_on if chosen_on is None else chosen_on
    own = SPLIT_NAMES.index("test")
    row["test_split_auroc"] = _mean_on(
        parts, measured, lambda part: part.own_splits[part.labels.kept] == own
    )
    row["test_auroc"] = auroc(labels.test, scores, groups=labels.groups)
    row["test_auroc_ci"] = list(bootstrap_auroc(labels.test, scores, groups=labels.groups))
    return _finish(row, measured, scores, labels, [one.seed_scores for one in measured])


def _join_folds(measured: Sequence[Measured], labels: Labels) -> Measured:
    """Answers are ranked within their fold: the scores of two detectors have different scales."""
    row = _join_rows(measured)
    ranks = np.concatenate([_ranks(one.test_scores) for one in measured])
    row["val_auroc"] = float(np.mean([one.row["val_auroc"] for one in measured]))
    row["test_auroc"] = auroc(labels.test, ranks)
    row["test_auroc_ci"] = list(bootstrap_auroc(labels.test, ranks))
    seeds = [tuple(_ranks(scores) for scores in one.seed_scores) for one in measured]
    return _finish(row, measured, ranks, labels, seeds)


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


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Between 0 and 1; ties get the mean of their ranks."""
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - counts / 2)[group] / len(scores)


def _join_rows(measured: Sequence[Measured]) -> Row:
    rows = [one.row for one in measured]
    return {
        **rows[0],
        **{name: float(np.mean([row[name] for row in rows])) for name in _MEANS},
        "chosen": _join_chosen([row["chosen"] for row in rows]),
        "by_layer": _join_layers([row["by_layer"] for row in rows]),
    }


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


def _finish(
    row: Row,
    measured: Sequence[Measured],
    scores: np.ndarray,
    labels: Labels,
    seeds: Sequence[tuple[np.ndarray, ...]],
) -> Measured:
    every = tuple(np.concatenate(one) for one in zip(*seeds, strict=True))
    is_seeded = row["test_auroc_mean"] is not None
    row |= over_seeds(is_seeded, [auroc(labels.test, one, groups=labels.groups) for one in every])
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
