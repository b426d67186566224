"""One row per method from several trials: the mean over question sets, each tested by what was
trained on the others, or all answers of a store, each tested in the fold that does not train on
it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.rows import Labels, Measured, Row, count_rarer, over_seeds
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Excluded, Trial, TrialResult
from clew.hallucination.samples.mixed import MixedAnswers
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
class Pooled:
    """The rows of the table, the labels behind them, and the parts that they sum up."""

    parts: tuple[Part, ...]
    measured: list[Measured]
    labels: Labels
    excluded: list[Excluded]


def pool(plan: Plan, results: Sequence[TrialResult]) -> Pooled:
    """Sum up the trials of `plan.parts`. A method without a result in one of them is excluded."""
    found = {id(result.trial): result for result in results}
    parts = tuple(_part(found[id(trial)]) for trial in plan.parts)
    names = list(dict.fromkeys(name for part in parts for name in part.measured))
    whole = [name for name in names if all(name in part.measured for part in parts)]
    of_sets = plan.kind == "sets"
    labels = _join_labels(parts, of_sets=of_sets)
    by_name = [[part.measured[name] for part in parts] for name in whole]
    return Pooled(
        parts=parts,
        measured=[
            _mean_over_sets(parts, some, labels) if of_sets else _join_folds(some, labels)
            for some in by_name
        ],
        labels=labels,
        excluded=[_explain_gap(parts, name) for name in names if name not in whole],
    )


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
