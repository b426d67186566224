"""What a comparison fits and tests: one split, one store on another, each set by detectors trained
on the others, or folds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from clew.base.errors import InputError
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.stores import (
    Store,
    leave_out,
    split_by_set,
    union,
    whole,
)
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.training.samples import refuse_thin
from clew.hallucination.samples.mixed import MixedAnswers, Portion, read_questions
from clew.hallucination.samples.splits import assign_folds
from clew.storage.reading import hash_text

Kind = Literal["one split", "transfer", "sets", "folds"]
_LEFT_OUT, _PAIRS, _FOLDS, _UNION = "left_out", "trained_on", "folds", "union"
_LETTERS = 60


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The table reports the test splits of `parts`: of one trial, or of one per question set or
    fold. `pairs` are the trials of the transfer matrix. `final` is the trial whose detectors are
    kept. `excluded` are the numbers of answers that parts are not tested on, by store. `notes` say
    what is missing."""

    kind: Kind
    parts: tuple[Trial, ...]
    final: Trial
    pairs: tuple[Trial, ...] = ()
    excluded: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Those that all methods run in."""
        return tuple(dict.fromkeys((*self.parts, *self.pairs)))

    @property
    def is_pooled(self) -> bool:
        """Whether the table sums up several trials."""
        return self.kind in ("sets", "folds")


def make_plan(config: CompareConfig, stores: Mapping[Path, Store]) -> Plan:
    """Raises InputError for stores that nothing can be learned from or tested on."""
    fitted = list(dict.fromkeys(stores[folder] for folder in config.train_on))
    tested = list(dict.fromkeys(stores[folder] for folder in config.test_on))
    if config.folds:
        plan = _fold(config, fitted[0])
    elif config.by_set:
        plan = _leave_each_out(config, split_by_set(fitted[0]))
    elif config.union:
        plan = _unite(config, fitted, tested)
    elif fitted == tested and len(fitted) > 1:
        plan = _leave_each_out(config, fitted)
    else:
        trials = _pair(config, fitted, tested, alone=len(fitted) == 1)
        is_one = fitted == tested
        kind: Kind = "one split" if is_one else "transfer"
        plan = Plan(kind=kind, parts=trials[:1], pairs=() if is_one else trials, final=trials[0])
    for trial in (*plan.trials, plan.final):
        _refuse_thin(trial)
    return plan


def _unite(config: CompareConfig, fitted: Sequence[Store], tested: Sequence[Store]) -> Plan:
    """Trained on several stores together. One of them is tested with its test split."""
    every = union(f"{' + '.join(store.name for store in fitted)} together", fitted)
    tests = tuple(store if store in fitted else whole(store) for store in tested)
    trial = _trial(config, every.name, every, tests, "")
    return Plan(kind="transfer", parts=(trial,), pairs=(trial,), final=trial)


def _leave_each_out(config: CompareConfig, stores: Sequence[Store]) -> Plan:
    """Each store by detectors trained on the others, beside all pairs."""
    parts, excluded = [], {}
    alone = [store for store in stores if config.pairs and not _lacks_class(store)]
    others = [store.name for store in stores if store not in alone]
    note = f"without both classes in every split, not trained alone: {', '.join(others)}"
    for store in stores:
        refuse_thin(store.place, whole(store).balance, ("test",))
        mixed, shared = leave_out(store, [s for s in stores if s is not store])
        _refuse_few_left(store.place, mixed.data.labels["test"], shared, "the other sets")
        excluded[store.name] = shared
        folder = f"{_LEFT_OUT}/{_plain(store.name)}"
        parts.append(_trial(config, f"all sets but {store.name}", mixed, (mixed,), folder))
    every = union(f"all {len(stores)} sets", stores)
    return Plan(
        kind="sets",
        parts=tuple(parts),
        pairs=_pair(config, alone, stores),
        notes=(note,) if config.pairs and others else (),
        final=_trial(config, every.name, every, (every,), _UNION),
        excluded=excluded,
    )


def _fold(config: CompareConfig, store: Store) -> Plan:
    """Each fold is tested once; the one after it is used to choose, the others to train."""
    [data] = store.folders
    index = data.index
    every = np.arange(len(index.rows))
    texts, groups = read_questions(data.fields, lambda field: data.read_rows(field, every))
    ids = [str(one) for one in index.question_ids]
    folds = assign_folds(ids, texts, index.labels, folds=config.folds, groups=groups)
    parts = []
    for number in range(1, config.folds + 1):
        turn = (folds - number + 1) % config.folds
        uses = {"test": turn == 0, "validation": turn == 1, "train": turn > 1}
        portions = {s: [Portion(data=data, rows=every[use])] for s, use in uses.items()}
        name = f"fold {number}"
        part = Store(name=name, data=MixedAnswers(f"{name} of {store.place}", portions))
        parts.append(_trial(config, f"all but {name}", part, (part,), f"{_FOLDS}/{number}"))
    final = _trial(config, store.name, store, (store,), "")
    return Plan(kind="folds", parts=tuple(parts), final=final)


def _pair(
    config: CompareConfig, fitted: Sequence[Store], tested: Sequence[Store], *, alone: bool = False
) -> tuple[Trial, ...]:
    """Each store of `fitted` on each of `tested`. A store that is not trained on is tested with all
    its answers."""
    trials = []
    for store in fitted:
        tests = tuple(test if test is store else whole(test) for test in tested)
        folder = "" if alone else f"{_PAIRS}/{_plain(store.name)}"
        trials.append(_trial(config, store.name, store, tests, folder))
    return tuple(trials)


def _trial(
    config: CompareConfig, name: str, train: Store, tests: tuple[Store, ...], inner: str
) -> Trial:
    return Trial(name=name, train=train, tests=tests, folder=config.out / inner, config=config)


def _plain(name: str) -> str:
    """A name as a folder's; one that has to be changed for that gets a hash, to stay unique."""
    plain = re.sub(r"[^\w-]+", "-", name)[:_LETTERS]
    return plain if plain == name else f"{plain}-{hash_text(name)[:6]}"


def _lacks_class(store: Store) -> bool:
    return not all(one.correct and one.hallucinated for one in store.balance.values())


def _refuse_thin(trial: Trial) -> None:
    refuse_thin(trial.train.place, trial.train.balance, ("train", "validation"))
    for store in trial.tests:
        refuse_thin(store.place, store.balance, ("test",))
        shared = int(trial.shared[store.name].sum())
        trained_on = f'"{trial.train.place}"'
        _refuse_few_left(store.place, trial.labels(store).test, shared, trained_on)


def _refuse_few_left(place: str, left: np.ndarray, shared: int, trained_on: str) -> None:
    """Raises InputError if the answers whose question was not trained on do not have both
    classes."""
    if not (left.any() and (left == 0).any()):
        raise InputError(
            f'{shared:,} of the questions of "{place}" were used for training or '
            f"validation in {trained_on}; the remaining ones have "
            f"{int((left == 0).sum()):,} correct and {int(left.sum()):,} hallucinated answers, "
            "but both are required: use other questions."
        )


def tell_shared(plan: Plan) -> list[str]:
    """Sentences about the answers that are excluded because their question was trained on."""
    excluded = [
        f"{count:,} answers of {name} are excluded, because another set has their questions in its "
        "training or validation split"
        for name, count in (plan.excluded or {}).items()
        if count
    ]
    shared = [
        f"{int(shared.sum()):,} of {len(shared):,} questions of {name} are excluded, "
        f"because {trial.name} uses them for training or validation"
        for trial in plan.pairs
        for name, shared in trial.shared.items()
        if shared.any()
    ]
    return [*plan.notes, *excluded, *shared]
