"""What a comparison found: the rows of its table, the answers behind them, and every trial."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.comparison.plan import Plan
from clew.hallucination.comparison.pooling import Part, pool
from clew.hallucination.comparison.rows import Labels, Measured, add_differences
from clew.hallucination.comparison.stores import Store
from clew.hallucination.comparison.trial import Excluded, Trial, TrialResult
from clew.hallucination.detectors.training.samples import Balance


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
    """The table of a plan whose trials have run."""
    excluded = [one for result in results for one in result.excluded]
    if not plan.is_pooled:
        trial, store, measured = _main_pair(results)
        labels = trial.labels(store)
        parts: tuple[Part, ...] = ()
        tested: tuple[Tested, ...] = (Tested(store=store, kept=labels.kept),)
    else:
        trial, pooled = plan.final, pool(plan, results)
        measured, labels, parts = pooled.measured, pooled.labels, pooled.parts
        tested = tuple(Tested(store=part.store, kept=part.labels.kept) for part in parts)
        excluded += pooled.excluded
        _refuse_empty(measured, excluded)
    add_differences(measured, labels)
    return Evaluation(
        plan=plan,
        results=tuple(results),
        trial=trial,
        measured=measured,
        labels=labels,
        tested=tested,
        parts=parts,
        excluded=excluded,
    )


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


def _refuse_empty(measured: Sequence[Measured], excluded: Sequence[Excluded]) -> None:
    if not measured:
        reasons = "\n  ".join(f"{one.title}: {one.reason}" for one in excluded)
        raise InputError(f"no method could be run in all trials:\n  {reasons}")


def _main_pair(results: Sequence[TrialResult]) -> tuple[Trial, Store, list[Measured]]:
    """The first store that any method was tested on."""
    return next(
        (result.trial, store, result.measured[store.name])
        for result in results
        for store in result.trial.tests
        if result.measured[store.name]
    )
