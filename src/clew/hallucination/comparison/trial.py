"""One store to fit on and the stores to test on: which methods can run there, how, and their
results. A method that fails is excluded and listed, and the others continue; errors that are not
specific to the method end the comparison."""

import logging
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clew.base.errors import (
    ClewError,
    DiskFullError,
    MethodError,
    SettingsMismatchError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.engine.folders import clear_run, only_one
from clew.hallucination.comparison.methods import (
    AnyMethod,
    explain_missing,
    find_kinds,
    reads_nodes,
)
from clew.hallucination.comparison.rows import Labels, Measured
from clew.hallucination.comparison.saved import SavedScores
from clew.hallucination.comparison.stores import CommonFields, Store, find_shared, have_one_basis
from clew.hallucination.detectors.probes.method import Features
from clew.hallucination.detectors.probes.own import OwnMethod
from clew.hallucination.detectors.training import TrainingSettings
from clew.hallucination.samples.mixed import is_of_nodes
from clew.storage.writing import replace_file

logger = logging.getLogger(__name__)
# Errors that end the whole comparison, because they affect all methods.
_END_THE_RUN = (
    *(TrainingStoppedError, SettingsMismatchError, StoreLockedError, DiskFullError),
    OSError,
)
OTHER_BASIS = (
    "its nodes are states in a basis that each capture fits on its own questions, so they are not "
    "comparable between these captures: capture the others with `basis` set to the first one's "
    "store of traces"
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
    a bug, or of a method from outside clew, is written to `folder`."""
    if isinstance(error, _END_THE_RUN):
        raise error
    if isinstance(error, MethodError):
        path = _write_traceback(method, error, folder)
        return Excluded(method=method, title=title, reason=f'{error}; the traceback is in "{path}"')
    if isinstance(error, ClewError):
        return Excluded(method=method, title=title, reason=str(error))
    if isinstance(error, MemoryError):
        reason = f"it does not fit in memory ({error}): use fewer answers or a larger machine"
        return Excluded(method=method, title=title, reason=reason)
    if isinstance(error, _NUMERICAL):
        return Excluded(method=method, title=title, reason=f"a computation failed ({error})")
    path = _write_traceback(method, error, folder)
    logger.error("%s failed: %s", title, path)
    reason = (
        f"it failed because of a bug in clew ({type(error).__name__}: {error}); the traceback is "
        f'in "{path}"'
    )
    return Excluded(method=method, title=title, reason=reason, is_fault=True)


def _write_traceback(method: str, error: Exception, folder: Path) -> Path:
    path = folder / f"{method}.fault.txt"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))
    return path


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Methods are fitted and chosen on `train`, and scored on the test splits of `tests`; their
    files go into `folder`. Methods with randomness are fitted once per seed in `seeds`. `name` is
    what they are trained on."""

    name: str
    train: Store
    tests: tuple[Store, ...]
    folder: Path
    seeds: range
    training: TrainingSettings

    @cached_property
    def saved(self) -> SavedScores:
        return SavedScores(self.folder / "methods")

    @property
    def size(self) -> int:
        """The number of answers that methods are trained on."""
        return len(self.train.data.labels["train"])

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
        and that are comparable between them. Fields derived from nodes are so only in one basis."""
        stores = (self.train, *self.tests)
        fields = frozenset.intersection(*(store.data.fields for store in stores))
        if not have_one_basis(stores):
            fields = frozenset(name for name in fields if not is_of_nodes(name))
        return CommonFields(self.train.data, fields)

    def features_for(self, method: AnyMethod) -> Features:
        """The common fields, and those that the method only learns from."""
        more = frozenset(method.learns_from) - self.features.fields
        return CommonFields(self.train.data, self.features.fields | more) if more else self.features

    def data_for(self, method: AnyMethod) -> Features:
        """All fields of `train`, if that is also what is tested: of several stores, only those that
        it is fitted on need the fields that the method only learns from."""
        data = self.train.data
        more = frozenset(method.learns_from) - data.fields
        return CommonFields(data, data.fields | more) if more else data

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
        if isinstance(method, OwnMethod):
            identity["method"] = method.identify()
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
        if reads_nodes(method) and not have_one_basis([self.train]):
            return OTHER_BASIS
        folders = dict.fromkeys(one for s in (self.train, *self.tests) for one in s.folders)
        for data in folders:
            reason = explain_missing(method, data, is_fitted=data in self.train.fitted_folders)
            if reason is not None:
                return reason if len(folders) == 1 else f'in "{data.name}" {reason}'
        held = self.train.data.fields | self.train.data.samples
        unlike = [need for need in method.needs if need not in held]
        if unlike:
            return (
                f"{', '.join(unlike)} has different shapes in these folders: capture them with "
                "the same `draws` and the same version of clew"
            )
        return None

    def can_be_tested(self, method: AnyMethod, store: Store) -> bool:
        """Whether the method can be tested on this store. Nodes are states in a basis, which each
        capture fits on its own questions unless it is given that of another."""
        is_same = store is self.train or not reads_nodes(method)
        return is_same or have_one_basis([self.train, store])


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The results of the methods fitted on one store, by the store that they are tested on."""

    trial: Trial
    measured: dict[str, list[Measured]]
    excluded: list[Excluded]
