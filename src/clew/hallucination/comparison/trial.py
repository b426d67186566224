"""A trial: what methods are fitted and tested on, their results, and their scores on disk, from
which a killed comparison resumes."""

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.errors import (
    ClewError,
    DiskFullError,
    MethodError,
    SettingsMismatchError,
    StoreError,
    StoreLockedError,
    TrainingStoppedError,
)
from clew.base.settings import find_differences
from clew.base.texts import shortened
from clew.base.typed_json import Count, Seconds, read_as, without_nan
from clew.engine.folders import clear_run, only_one
from clew.engine.model_files import read_model, write_model
from clew.hallucination.comparison.methods import (
    AnyMethod,
    NetworkMethod,
    explain_missing,
    find_kinds,
    reads_nodes,
)
from clew.hallucination.comparison.settings import CompareConfig
from clew.hallucination.comparison.stores import (
    CommonFields,
    Store,
    find_shared,
    have_one_basis,
)
from clew.hallucination.detectors.data import FED_FIELDS, why_not_fed
from clew.hallucination.detectors.detector_folder import Packed, pack, unpack
from clew.hallucination.detectors.probes.method import Features, Outcome, Scorer
from clew.hallucination.detectors.probes.own import OwnMethod
from clew.hallucination.detectors.probes.registry import find_scorer_class, kind_of
from clew.hallucination.samples.datasets import SampleKind
from clew.hallucination.samples.mixed import is_of_nodes, number_groups
from clew.metrics.calibration import PlattScale
from clew.storage.arrow import ARROW_ERRORS, encode_table, read_table
from clew.storage.reading import read_json
from clew.storage.writing import replace_file, replace_json

Row = dict[str, Any]
# With fewer answers of a class, a split supports neither a p-value nor a choice of the best.
FEWEST = 10
_VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The part of a seed's result that is in the JSON."""

    parameters: Count
    chosen: dict[str, Any]
    by_layer: dict[str, list[float | None]] | None
    train_seconds: Seconds
    ms_per_answer: Seconds
    plan: dict[str, Any] | None = None


_TOLD = tuple(one.name for one in fields(_Told))


@dataclass(frozen=True, kw_only=True)
class _About:
    identity: dict[str, Any]
    seeds: list[_Told]


class SavedScores:
    """The finished methods of one folder: NAME.arrow with the scores, then NAME.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, method: str, identity: Mapping[str, Any]) -> list[Outcome] | None:
        """The scores of all seeds; raises SettingsMismatchError if they are of other data or
        settings, StoreError if they cannot be read."""
        about = self._read_about(method)
        if about is None:
            return None
        refuse_other(self.folder.parent, method, about.identity, identity)
        try:
            table = read_table(self._path(method, "arrow"), dictionaries=True)
            _check_table(table, len(about.seeds))
            return [_from_table(table, number, told) for number, told in enumerate(about.seeds)]
        except ARROW_ERRORS as error:
            raise self._explain_damaged(method, error) from None

    def add(self, method: str, identity: Mapping[str, Any], seeds: Sequence[Outcome]) -> None:
        """Save a method's scores. The JSON is written last: it marks the method as finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(method, "fault.txt").unlink(missing_ok=True)
        replace_file(self._path(method, "arrow"), encode_table(_to_table(seeds)))
        about = {
            "identity": identity,
            "seeds": [{name: getattr(seed, name) for name in _TOLD} for seed in seeds],
        }
        replace_json(self._path(method, "json"), about)

    def names(self) -> list[str]:
        """The finished methods."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def remove(self, method: str) -> None:
        for ending in ("json", "arrow", "safetensors", "fault.txt"):
            self._path(method, ending).unlink(missing_ok=True)

    def keep_scorer(self, method: str, scorer: Scorer) -> None:
        """Save a fitted method, so that it can become a detector when all methods are finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        packed = pack(scorer)
        about = {"kind": kind_of(scorer), "fitted": packed.about}
        write_model(self._path(method, "safetensors"), packed.tensors, about)

    def find_scorer(self, method: str) -> Scorer | None:
        """The fitted method; None if it was not saved. Raises StoreError if it cannot be read."""
        path = self._path(method, "safetensors")
        if not path.exists():
            return None
        try:
            saved = read_model(path)
            kind = find_scorer_class(read_as(str, saved.about.get("kind"), "kind"))
            about = read_as(dict[str, Any], saved.about.get("fitted"), "fitted")
            return unpack(kind, Packed(about=about, tensors=saved.read(saved.kinds)))
        except StoreError as error:  # its advice would not help here
            raise self._explain_damaged(method, error.__cause__ or error) from None
        except ValueError as error:
            raise self._explain_damaged(method, error) from None

    def _path(self, method: str, ending: str) -> Path:
        return self.folder / f"{method}.{ending}"

    def _read_about(self, method: str) -> "_About | None":
        path = self._path(method, "json")
        if not path.exists():
            return None
        try:
            about = without_nan(read_json(path, finite=False, encodable=False))
            return read_as(_About, about)
        except (OSError, ValueError) as error:
            raise self._explain_damaged(method, error) from None

    def _explain_damaged(self, method: str, error: BaseException) -> StoreError:
        return StoreError(
            f'the scores of {method} in "{self.folder}" cannot be read ({error}): delete '
            f"{method}.json and run the same command again."
        )


def refuse_other(
    folder: Path, method: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise SettingsMismatchError, with both values of every difference, for scores of other data
    or settings."""
    now = json.loads(json.dumps(now))
    old, new = (_list_tested(identity) for identity in (before, now))
    if old != new:  # compare the names only: the rest would add a line per count
        before, now = {**before, "test_on": old}, {**now, "test_on": new}
    different = find_differences(before, now)
    if different:
        raise SettingsMismatchError(
            f'"{folder}" has results for {method} from different data or settings:\n  '
            + "\n  ".join(map(str, different))
            + "\nUse the same data and settings to resume, choose another `out`, or start over "
            "in this folder with `overwrite=True`."
        )


def _list_tested(identity: Mapping[str, Any]) -> Any:
    """The names of what was tested on; what a file has in their place stays as it is."""
    tested = identity.get("test_on", ())
    return sorted(map(str, tested)) if isinstance(tested, dict | list | tuple) else tested


def _to_table(seeds: Sequence[Outcome]) -> pa.Table:
    """One row per answer, one column per seed."""
    sets = [
        *([_VALIDATION] * len(seeds[0].validation)),
        *(f"test of {name}" for name, scores in seeds[0].tests.items() for _ in scores),
    ]
    columns = {
        f"seed-{number}": np.concatenate([seed.validation, *seed.tests.values()]).astype(float)
        for number, seed in enumerate(seeds)
    }
    return pa.table({"set": pa.array(sets).dictionary_encode(), **columns})


def _check_table(table: pa.Table, seeds: int) -> None:
    """Raises ValueError for a table that `_to_table` did not make."""
    columns = {f"seed-{number}": pa.float64() for number in range(seeds)}
    wanted = {"set": pa.dictionary(pa.int32(), pa.string()), **columns}
    found = {field.name: field.type for field in table.schema}
    if found != wanted or any(column.null_count for column in table.columns):
        raise ValueError(f"its columns are {shortened(list(found))}, or have missing values")
    if not all(np.isfinite(table[name].to_numpy()).all() for name in columns):
        raise ValueError("it contains NaN or infinity")


def _from_table(table: pa.Table, number: int, told: _Told) -> Outcome:
    sets = np.array(table["set"].to_pylist(), dtype=object)
    values = table[f"seed-{number}"].to_numpy()
    names = [name for name in dict.fromkeys(sets) if name != _VALIDATION]
    tests = {name.removeprefix("test of "): values[sets == name] for name in names}
    return Outcome(validation=values[sets == _VALIDATION], tests=tests, **asdict(told))


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


def explain_failure(method: str, title: str, error: Exception, *, folder: Path) -> Excluded:
    """Why the method is excluded; raises the error again if it ends the whole run. The traceback of
    a bug, or of a method from outside clew, is written to `folder`."""
    if isinstance(error, _END_THE_RUN):
        raise error
    is_fault = not isinstance(error, (ClewError, MemoryError, *_NUMERICAL))
    reason = str(error)
    if isinstance(error, MemoryError):
        reason = f"it does not fit in memory ({error}): use fewer answers or a larger machine"
    elif isinstance(error, _NUMERICAL):
        reason = f"a computation failed ({error})"
    elif is_fault:
        reason = f"it failed because of a bug in clew ({type(error).__name__}: {error})"
    if is_fault or isinstance(error, MethodError):
        path = _write_traceback(method, error, folder)
        reason = f'{reason}; the traceback is in "{path}"'
    if is_fault:
        logger.error("%s failed: %s", title, path)
    return Excluded(method=method, title=title, reason=reason, is_fault=is_fault)


def _write_traceback(method: str, error: Exception, folder: Path) -> Path:
    path = folder / f"{method}.fault.txt"
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(traceback.format_exception(error)).encode("utf-8", "replace"))
    return path


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of results.json and the scores behind it: those of the seed with the median validation
    AUROC, the one at `place`. Probabilities are calibrated on validation, with `calibration`.
    `seed_scores` are the test scores of all seeds."""

    row: Row
    place: int
    calibration: PlattScale
    test_scores: np.ndarray
    seed_scores: tuple[np.ndarray, ...]
    validation_probabilities: np.ndarray
    test_probabilities: np.ndarray
    plan: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of the validation and test splits; 1 is hallucinated. `kept` are the positions of
    the test answers that are evaluated. `groups` are the question sets of the test answers, if the
    AUROC is the mean over several; `clusters` are what must not be split of given answers, such as
    documents: intervals and tests draw these instead of answers."""

    validation: np.ndarray
    test: np.ndarray
    kept: np.ndarray
    groups: np.ndarray | None = None
    clusters: np.ndarray | None = None

    @property
    def dependence(self) -> dict[str, Any]:
        """How the test answers hang together, for intervals and tests."""
        return {"groups": self.groups, "clusters": self.clusters}

    @property
    def supports_choice(self) -> bool:
        """Whether validation has enough answers of both classes to call a method the best."""
        return count_rarer(self.validation) >= FEWEST

    @property
    def supports_tests(self) -> bool:
        """Whether the test answers are enough of both classes for a p-value."""
        return count_rarer(self.test) >= FEWEST


def count_rarer(labels: np.ndarray) -> int:
    """The number of answers of the rarer class."""
    hallucinated = int((labels > 0).sum())
    return min(hallucinated, len(labels) - hallucinated)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """Methods are fitted and chosen on `train`, and scored on the test splits of `tests`; their
    files go into `folder`. `name` is what they are trained on."""

    name: str
    train: Store
    tests: tuple[Store, ...]
    folder: Path
    config: CompareConfig

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

    @cached_property
    def _clusters(self) -> dict[str, np.ndarray | None]:
        return {store.name: number_groups(store.data, "test") for store in self.tests}

    def labels(self, store: Store) -> Labels:
        kept = np.flatnonzero(~self.shared[store.name])
        clusters = self._clusters[store.name]
        return Labels(
            validation=self.train.data.labels["validation"],
            test=store.data.labels["test"][kept],
            kept=kept,
            clusters=None if clusters is None else clusters[kept],
        )

    @cached_property
    def features(self) -> Features:
        """The fields that a method tested on other stores is fitted on: those that all stores have
        and that are comparable between them. Fields derived from nodes are so only in one basis."""
        stores = (self.train, *self.tests)
        fields = frozenset.intersection(*(store.data.fields for store in stores))
        if not have_one_basis(stores):
            fields = frozenset(name for name in fields if not is_of_nodes(name))
        return CommonFields(self.train.data, fields)

    def features_for(self, method: AnyMethod, tests: Sequence[Store]) -> Features:
        """All fields of `train` if that is also what is tested, else the common ones; and those
        that the method only learns from: of several stores, only those that it is fitted on need
        them."""
        found: Features = self.train.data if [*tests] == [self.train] else self.features
        if self.config.engine == "vllm":
            found = CommonFields(self.train.data, found.fields & FED_FIELDS)
        more = frozenset(method.learns_from) - found.fields
        return CommonFields(self.train.data, found.fields | more) if more else found

    def tested_by(self, method: AnyMethod) -> list[Store]:
        """The stores that the method can be tested on. Nodes are states in a basis, which each
        capture fits on its own questions unless it is given that of another."""
        free = not reads_nodes(method)
        return [s for s in self.tests if free or s is self.train or have_one_basis([self.train, s])]

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
            identity |= {"seeds": self.config.seeds, "first_seed": self.config.train.seed}
        if method.family == "network":
            identity["training"] = self.config.identify()
        if isinstance(method, OwnMethod):
            identity["method"] = method.identify()
        if self.config.engine == "vllm" and not {*method.also_reads} <= FED_FIELDS:
            identity["engine"] = self.config.engine  # it is fitted on other fields
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
        unfed = why_not_fed(*_read_by(method)) if self.config.engine == "vllm" else None
        if unfed is not None:
            return f"vLLM gives states and token probabilities, and {unfed}"
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


def _read_by(method: AnyMethod) -> tuple[tuple[str, ...], SampleKind | None]:
    """The fields that a method cannot do without, and the samples of a network."""
    if isinstance(method, NetworkMethod):
        return (), method.kind.samples
    is_read = method.family != "baseline"  # which is never kept
    return (method.needs if is_read else ()), None


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The results of the methods fitted on one store, by the store that they are tested on."""

    trial: Trial
    measured: dict[str, list[Measured]]
    excluded: list[Excluded]
