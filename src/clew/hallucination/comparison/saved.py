"""The scores of finished methods on disk, from which a killed comparison resumes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.base.errors import SettingsMismatchError, StoreError
from clew.base.settings import find_differences
from clew.base.texts import shortened
from clew.base.typed_json import Count, Seconds, read_as, without_nan
from clew.engine.model_files import read_model, write_model
from clew.hallucination.detectors.packing import Packed, pack, unpack
from clew.hallucination.detectors.probes.kinds import find_scorer_class, kind_of
from clew.hallucination.detectors.probes.method import Scorer
from clew.storage.arrow import ARROW_ERRORS, encode_table, read_table
from clew.storage.reading import read_json
from clew.storage.writing import replace_file, replace_json

_VALIDATION = "validation"


@dataclass(frozen=True, kw_only=True)
class SeedScores:
    """The result of one seed: the uncalibrated risks (higher = more likely hallucinated) on the
    validation split and on the test split of every store, and what they cost. `plan` is the
    hardware plan of a network. `scorer` is the fitted method, of a probe that was just fitted.
    """

    validation: np.ndarray
    tests: dict[str, np.ndarray]
    parameters: int
    chosen: dict[str, Any]
    by_layer: dict[str, list[float]] | None
    train_seconds: float
    ms_per_answer: float
    plan: dict[str, Any] | None = None
    scorer: Scorer | None = None


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The part of a seed's result that is in the JSON."""

    parameters: Count
    chosen: dict[str, Any]
    by_layer: dict[str, list[float | None]] | None
    train_seconds: Seconds
    ms_per_answer: Seconds
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _About:
    identity: dict[str, Any]
    seeds: list[_Told]


class SavedScores:
    """The finished methods of one folder: NAME.arrow with the scores, then NAME.json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, method: str, identity: Mapping[str, Any]) -> list[SeedScores] | None:
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

    def add(self, method: str, identity: Mapping[str, Any], seeds: Sequence[SeedScores]) -> None:
        """Save a method's scores. The JSON is written last: it marks the method as finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(method, "fault.txt").unlink(missing_ok=True)
        replace_file(self._path(method, "arrow"), encode_table(_to_table(seeds)))
        about = {"identity": identity, "seeds": [_describe(seed) for seed in seeds]}
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


def _describe(seed: SeedScores) -> dict[str, Any]:
    return {
        "parameters": seed.parameters,
        "chosen": seed.chosen,
        "by_layer": seed.by_layer,
        "train_seconds": seed.train_seconds,
        "ms_per_answer": seed.ms_per_answer,
        "plan": seed.plan,
    }


def _to_table(seeds: Sequence[SeedScores]) -> pa.Table:
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


def _from_table(table: pa.Table, number: int, told: _Told) -> SeedScores:
    sets = np.array(table["set"].to_pylist(), dtype=object)
    values = table[f"seed-{number}"].to_numpy()
    names = [name for name in dict.fromkeys(sets) if name != _VALIDATION]
    tests = {name.removeprefix("test of "): values[sets == name] for name in names}
    return SeedScores(validation=values[sets == _VALIDATION], tests=tests, **asdict(told))
