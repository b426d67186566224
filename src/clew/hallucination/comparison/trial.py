"""One store to fit on and the stores to test on: which methods can run there, how, and their
results. A method that fails is excluded and listed, and the others continue; errors that are not
specific to the method end the comparison."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clew.engine.folders import clear_run, only_one
from clew.errors import (
    ClewError,
    DiskFullError,
    SettingsMismatchError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.hallucination.comparison.config import CompareConfig
from clew.hallucination.comparison.methods import (
    AnyMethod,
    explain_missing,
    find_kinds,
    is_of_nodes,
    reads_nodes,
)
from clew.hallucination.comparison.rows import Labels, Measured
from clew.hallucination.comparison.saved import SavedScores
from clew.hallucination.comparison.stores import CommonFields, Store, find_shared
from clew.hallucination.detectors.probes.method import Features
from clew.hallucination.detectors.training import TrainingSettings
from clew.storage.writing import replace_file

logger = logging.getLogger(__name__)
# Errors that end the whole comparison, because they affect all methods.
_END_THE_RUN = (
    *(TrainingStoppedError, SettingsMismatchError, StoreLockedError, DiskFullError),
    OSError,
)
_NUMERICAL = (np.linalg.LinAlgError, FloatingPointError, ZeroDivisionError, OverflowError)


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """A method without a row. `is_fault` marks an unexpected error, a bug in clew."""

    method: str
    title: str
    reason: str
    is_fault: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.method, "title": self.title, "reason": self.reason}


def explain_failure(method: str, title: str, error: Exception, *, folder: Path) -> Excluded:
    """Why the method is excluded; raises the error again if it ends the whole run. The traceback of
    a bug is written to `folder`."""
    if isinstance(error, _END_THE_RUN):
        raise error
    if isinstance(error, ClewError):
        return Excluded(method=method, title=title, reason=str(error))
    if isinstance(error, MemoryError):
        reason = f"it does not fit in memory ({error}): use fewer answers or a larger machine"
        return Excluded(method=method, title=title, reason=reason)
    if isinstance(error, _NUMERICAL):
        return Excluded(method=method, title=title, reason=f"a computation failed ({error})")
    path = folder / f"{method}.fault.txt"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))
    logger.error("%s failed: %s", title, path)
    reason = (
        f"it failed because of a bug in clew ({type(error).__name__}: {error}); the traceback is "
        f'in "{path}"'
    )
    return Excluded(method=method, title=title, reason=reason, is_fault=True)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Methods are fitted and chosen on `train`, and scored on the test splits of `tests`; their
    files go into `folder`. Methods with randomness are fitted once per seed in `seeds`."""

    train: Store
    tests: tuple[Store, ...]
    folder: Path
    seeds: range
    training: TrainingSettings

    @cached_property
    def saved(self) -> SavedScores:
        return SavedScores(self.folder / "methods")

    @property
    def networks_folder(self) -> Path:
        return self.folder / "networks"

    @cached_property
    def shared(self) -> dict[str, np.ndarray]:
        """By test store: which of its test answers are excluded because `train` is fitted or chosen
        on their question."""
        return {store.name: find_shared(self.train, store) for store in self.tests}

    def labels(self, store: Store) -> Labels:
        kept = np.flatnonzero(~self.shared[store.name])
        of = self.train.data.labels
        return Labels(validation=of["validation"], test=store.data.labels["test"][kept], kept=kept)

    @cached_property
    def features(self) -> Features:
        """The fields that a method tested on other stores is fitted on: those that all stores have
        and that are comparable between them. Fields derived from nodes are not."""
        common = frozenset.intersection(*(s.data.fields for s in (self.train, *self.tests)))
        fields = frozenset(name for name in common if not is_of_nodes(name))
        return CommonFields(self.train.data, fields)

    def identify(self, method: AnyMethod) -> dict[str, Any]:
        """Everything that determines a method's scores."""
        kinds = find_kinds(method)

        def describe(store: Store) -> dict[str, Any]:
            return {**store.describe(), "values": store.hash_values(kinds)}

        identity: dict[str, Any] = {
            "train_on": describe(self.train),
            "test_on": {store.name: describe(store) for store in self.tests},
        }
        if method.is_seeded:
            identity |= {"seeds": len(self.seeds), "first_seed": self.seeds.start}
        if method.family == "network":
            identity["training"] = self.training.identify()
        return identity

    def clear(self, method: AnyMethod) -> None:
        """Remove the files of the method from an earlier comparison; raises StoreLockedError if
        another run is writing them."""
        self.saved.remove(method.name)
        for folder in sorted((self.networks_folder / method.name).glob("seed-*")):
            with only_one(folder):
                clear_run(folder)

    def refuse_reason(self, method: AnyMethod) -> str | None:
        """Why the method cannot run here and what to do about it; None if it can."""
        stores = dict.fromkeys([self.train, *self.tests])
        for store in stores:
            reason = explain_missing(method, store.data)
            if reason is not None:
                return reason if len(stores) == 1 else f'in "{store.folder}" {reason}'
        return None

    def can_be_tested(self, method: AnyMethod, store: Store) -> bool:
        """Whether the method can be tested on this store. Nodes are states in a basis that each
        capture fits on its own questions, so those of two captures are not comparable."""
        return store is self.train or not reads_nodes(method)


def plan_trials(config: CompareConfig, stores: Mapping[Path, Store]) -> list[Trial]:
    """One trial per store to fit on; with several stores, each trial has its own folder."""
    tests = tuple(dict.fromkeys(stores[folder] for folder in config.test_on))
    fitted = list(dict.fromkeys(stores[folder] for folder in config.train_on))
    trials = []
    for store in fitted:
        inner = f"trained_on/{store.name.replace('/', '--')}" if len(fitted) > 1 else ""
        trials.append(
            Trial(
                train=store,
                tests=tests,
                folder=config.out / inner,
                seeds=config.seed_numbers,
                training=config.training,
            )
        )
    return trials


def tell_shared(trials: Sequence[Trial]) -> list[str]:
    """Sentences about the answers excluded from each test split."""
    return [
        f"{int(shared.sum()):,} of {len(shared):,} test questions of {name} are excluded, "
        f"because {trial.train.name} uses them for training or validation"
        for trial in trials
        for name, shared in trial.shared.items()
        if shared.any()
    ]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The results of the methods fitted on one store, by the store that they are tested on."""

    trial: Trial
    measured: dict[str, list[Measured]]
    excluded: list[Excluded]
