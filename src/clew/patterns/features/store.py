"""Stores of what the network makes of photos: one row per photo and view, found again by the
photo's digest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clew.loading.reader import exceeds_cache
from clew.patterns.cache.rows import ID, RowStore
from clew.patterns.features.frozen import FORMS, Form
from clew.patterns.features.views import Key
from clew.storage import StoreReader, read_manifest
from clew.storage.manifest import has_manifest

_ADVICE = "Free some space and run the same command again."


class FeatureStore(RowStore):
    """A store whose rows have these columns: an array of a fixed width each. All rows were computed
    in the same `form`, since forms differ in the last bits."""

    def __init__(
        self,
        path: Path,
        *,
        kind: str,
        columns: Mapping[str, tuple[int, np.dtype[Any]]],
        identity: Mapping[str, Any],
        cache_dir: Path | None = None,
    ) -> None:
        self._columns = dict(columns)
        super().__init__(
            path,
            _schema(columns),
            kind=kind,
            identity=identity,
            row_bytes=sum(width * dtype.itemsize for width, dtype in columns.values()),
            work="computed the features",
            advice=_ADVICE,
            cache_dir=cache_dir,
        )

    def keys(self) -> list[Key]:
        """Digest and view of every row."""
        if not self.exists():
            return []
        reader = self._open()
        return [key for number in range(len(reader.shards)) for key in _read_keys(reader, number)]

    def read(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """The columns of these rows, `[keys, width]` each."""
        places = {key: place for place, key in enumerate(keys)}
        arrays = [np.empty((len(keys), *of[:1]), of[1]) for of in self._columns.values()]
        reader = self._open()
        for number in range(len(reader.shards)):
            found = np.array([places.get(key, -1) for key in _read_keys(reader, number)], np.int64)
            rows = np.flatnonzero(found >= 0)
            for name, out in zip(self._columns, arrays, strict=True):
                out[found[rows]] = _read_values(reader, number, name, out)[rows]
        return arrays

    def build_rows(
        self, keys: Sequence[Key], first_id: int, arrays: Sequence[np.ndarray]
    ) -> pa.RecordBatch:
        columns = [
            pa.array(np.arange(first_id, first_id + len(keys))),
            pa.array([digest for digest, _ in keys], pa.string()),
            pa.array([view for _, view in keys], pa.int32()),
            *(_as_lists(values) for values in arrays),
        ]
        cast = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)

    def _open(self) -> StoreReader:
        self.refuse_other(read_manifest(self.path))
        return self.open_reader()


def find_form(path: Path) -> Form | None:
    """The form that the rows of a store were computed in; None if there is none yet."""
    form = read_manifest(path).settings.get("form") if has_manifest(path) else None
    return form if form in FORMS else None


def _schema(columns: Mapping[str, tuple[int, np.dtype[Any]]]) -> pa.Schema:
    types = {ID: pa.int64(), "digest": pa.string(), "view": pa.int32()}
    for name, (width, dtype) in columns.items():
        types[name] = pa.list_(pa.from_numpy_dtype(dtype), width)
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


def _as_lists(values: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _read_keys(reader: StoreReader, number: int) -> list[Key]:
    table = reader.peek(number).read_columns(("digest", "view"))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _read_values(reader: StoreReader, number: int, name: str, like: np.ndarray) -> np.ndarray:
    is_large = exceeds_cache(reader.path, reader.manifest.bytes)
    shard = reader.peek(number) if is_large else reader.shard(number)
    chunks = shard.read_column(name).chunks
    flat = [chunk.flatten().to_numpy() for chunk in chunks]
    return np.concatenate([np.zeros(0, like.dtype), *flat]).reshape(-1, like.shape[1])
