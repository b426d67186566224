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
from clew.hallucination.comparison.stores import Store, leave_out, split_by_set, union, whole
from clew.hallucination.comparison.trial import Trial
from clew.hallucination.detectors.training.samples import refuse_thin
from clew.hallucination.detectors.training.settings import TrainingSettings
from clew.hallucination.samples.mixed import MixedAnswers, Portion
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
    planner = _Planner(config.out, config.seed_numbers, config.training)
    if config.folds:
        plan = planner.fold(fitted[0], config.folds)
    elif config.by_set:
        plan = planner.leave_each_out(split_by_set(fitted[0]), pairs=config.pairs)
    elif fitted == tested and len(fitted) > 1:
        plan = planner.leave_each_out(fitted, pairs=config.pairs)
    else:
        plan = planner.pair(fitted, tested)
    for trial in (*plan.trials, plan.final):
        _refuse_thin(trial)
    return plan


@dataclass(frozen=True)
class _Planner:
    out: Path
    seeds: range
    training: TrainingSettings

    def pair(self, fitted: Sequence[Store], tested: Sequence[Store]) -> Plan:
        """Each store of `fitted` on each of `tested`; one store on itself is one split."""
        pairs = tuple(self._pairs(fitted, tested, alone=len(fitted) == 1))
        is_one = list(fitted) == list(tested)
        return Plan(
            kind="one split" if is_one else "transfer",
            parts=pairs[:1],
            pairs=() if is_one else pairs,
            final=pairs[0],
        )

    def leave_each_out(self, stores: Sequence[Store], *, pairs: bool) -> Plan:
        """Each store by detectors trained on the others, beside all pairs."""
        parts, excluded = [], {}
        alone = [store for store in stores if pairs and not _lacks_class(store)]
        others = [store.name for store in stores if store not in alone]
        note = f"without both classes in every split, not trained alone: {', '.join(others)}"
        for store in stores:
            refuse_thin(store.place, whole(store).balance, ("test",))
            mixed, shared = leave_out(store, [s for s in stores if s is not store])
            _refuse_few_left(store.place, mixed.data.labels["test"], shared, "the other sets")
            excluded[store.name] = shared
            name = f"all sets but {store.name}"
            parts.append(self._trial(name, mixed, (mixed,), f"{_LEFT_OUT}/{_plain(store.name)}"))
        every = union(f"all {len(stores)} sets", stores)
        return Plan(
            kind="sets",
            parts=tuple(parts),
            pairs=tuple(self._pairs(alone, stores)),
            notes=(note,) if pairs and others else (),
            final=self._trial(every.name, every, (every,), _UNION),
            excluded=excluded,
        )

    def fold(self, store: Store, count: int) -> Plan:
        """Each fold is tested once; the one after it is used to choose, the others to train."""
        [data] = store.folders
        index = data.index
        every = np.arange(len(index.rows))
        texts = data.read_rows("question", every) if "question" in data.fields else None
        ids = [str(one) for one in index.question_ids]
        folds = assign_folds(ids, texts, index.labels, folds=count)
        parts = []
        for number in range(1, count + 1):
            turn = (folds - number + 1) % count
            uses = {"test": turn == 0, "validation": turn == 1, "train": turn > 1}
            portions = {s: [Portion(data=data, rows=every[use])] for s, use in uses.items()}
            name = f"fold {number}"
            part = Store(name=name, data=MixedAnswers(f"{name} of {store.place}", portions))
            parts.append(self._trial(f"all but {name}", part, (part,), f"{_FOLDS}/{number}"))
        return Plan(
            kind="folds",
            parts=tuple(parts),
            final=self._trial(store.name, store, (store,), ""),
        )

    def _pairs(
        self, fitted: Sequence[Store], tested: Sequence[Store], *, alone: bool = False
    ) -> list[Trial]:
        """A store that is not trained on is tested with all its answers."""
        return [
            self._trial(
                store.name,
                store,
                tuple(test if test is store else whole(test) for test in tested),
                "" if alone else f"{_PAIRS}/{_plain(store.name)}",
            )
            for store in fitted
        ]

    def _trial(self, name: str, train: Store, tests: tuple[Store, ...], inner: str) -> Trial:
        return Trial(
            name=name,
            train=train,
            tests=tests,
            folder=self.out / inner,
            seeds=self.seeds,
            training=self.training,
        )


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
    told = [
        *plan.notes,
        *_tell_excluded(plan),
    ]
    return told + [
        f"{int(shared.sum()):,} of {len(shared):,} questions of {name} are excluded, "
        f"because {trial.name} uses them for training or validation"
        for trial in plan.pairs
        for name, shared in trial.shared.items()
        if shared.any()
    ]


def _tell_excluded(plan: Plan) -> list[str]:
    return [
        f"{count:,} answers of {name} are excluded, because another set has their questions in its "
        "training or validation split"
        for name, count in (plan.excluded or {}).items()
        if count
    ]
