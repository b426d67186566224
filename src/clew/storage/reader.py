"""Read memory-mapped shards: opening one reads only its footer, a row only its own bytes.

Arrow writes the values of a list column contiguously and uncompressed. Once their offsets are
known, reading a row is a single copy from the file, without any Arrow or Python objects.
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.errors import Call, StoreError, TooManyFilesError
from clew.storage.arrow import ARROW_ERRORS, BatchHeaders, check_batch, check_types, map_file
from clew.storage.manifest import Manifest, ShardEntry, read_manifest
from clew.storage.origin import ID_COLUMN, find_foreign, foreign_error
from clew.storage.reading import irregular_kind
from clew.wording import counted

ColumnTypes = Mapping[str, pa.DataType]


class ShardReader:
    """One mapped shard. Record batches are opened and checked when first touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._map = map_file(path)
            self._file = pa.ipc.open_file(self._map)
            check_types(self._file.schema)
            self._headers = BatchHeaders(self.whole_file())
        except FileNotFoundError:
            raise missing_shard(path) from None
        except ARROW_ERRORS as error:
            raise _explain(path, error) from None
        self._batches: list[pa.RecordBatch | None] = [None] * self._file.num_record_batches
        self._row_of_id: np.ndarray | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema

    def whole_file(self) -> pa.Buffer:
        """The mapped file; it stays mapped as long as the buffer, or a view of it, lives."""
        self._map.seek(0)
        return self._map.read_buffer()

    def close(self) -> None:
        """Closes the file; what was read from it stays mapped."""
        self._map.close()

    @property
    def num_record_batches(self) -> int:
        return self._file.num_record_batches

    def record_batch(self, index: int) -> pa.RecordBatch:
        batch = self._batches[index]
        if batch is None:
            batch = self._batches[index] = self._open_batch(index)
        return batch

    def _open_batch(self, index: int) -> pa.RecordBatch:
        try:
            self._headers.check(index)
            batch = self._file.get_batch(index)
            check_batch(batch)
        except ARROW_ERRORS as error:
            raise _explain(self.path, error) from None
        return batch

    def count_rows(self) -> int:
        return sum(self.record_batch(i).num_rows for i in range(self.num_record_batches))

    def read_column(self, name: str) -> pa.ChunkedArray:
        """One column of the whole shard, without copying; only its own pages are read."""
        if name not in self.schema.names:
            raise StoreError(
                f'{self.path.name} has no column "{name}": check the store with "clew inspect".'
            )
        chunks = [self.record_batch(i).column(name) for i in range(self.num_record_batches)]
        return pa.chunked_array(chunks, type=self.schema.field(name).type)

    def read_ids(self, name: str = ID_COLUMN) -> Int64[np.ndarray, " rows"]:
        """The column that identifies the rows; raises StoreError if it holds anything but int64."""
        column = self.read_column(name)
        if column.type != pa.int64() or column.null_count:
            raise StoreError(
                f'the column "{name}" of {self.path.name} has missing values or is not of type '
                "int64",
                action="repair",
                store=self.path.parent,
            )
        return column.to_numpy()

    def locate(self, column: str, value: int) -> tuple[int, int] | None:
        """(record batch, row in it) of the row whose integer `column` equals `value`."""
        if self._row_of_id is None:
            sizes = [self.record_batch(i).num_rows for i in range(self.num_record_batches)]
            batches = np.repeat(np.arange(len(sizes)), sizes)
            rows = np.concatenate([np.zeros(0, np.int64), *map(np.arange, sizes)])
            table = np.stack([self.read_ids(column), batches, rows], axis=1)
            self._row_of_id = table[np.argsort(table[:, 0], kind="stable")]
        at = int(np.searchsorted(self._row_of_id[:, 0], value))
        if at == len(self._row_of_id) or self._row_of_id[at, 0] != value:
            return None
        return int(self._row_of_id[at, 1]), int(self._row_of_id[at, 2])


class StoreReader:
    """A store's manifest and its shards; at most `max_open` shards are mapped at a time. `types`
    are the types that columns must have where a shard has them."""

    def __init__(
        self, store: str | Path, max_open: int = 64, types: ColumnTypes | None = None
    ) -> None:
        self.path = Path(store)
        self.manifest: Manifest = read_manifest(self.path)
        self.shards = sorted(self.manifest.shards, key=lambda shard: shard.batch_number)
        self._max_open, self._types = max_open, types
        self._open: OrderedDict[int, ShardReader] = OrderedDict()

    def shard(self, index: int) -> ShardReader:
        """The reader of finished shard number `index`."""
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        reader = open_shard(self.path, self.shards[index], self.manifest, self._types)
        self._open[index] = reader
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)
        return reader


def open_shard(
    store: Path,
    entry: ShardEntry,
    manifest: Manifest | None,
    types: ColumnTypes | None = None,
) -> ShardReader:
    """The reader of a finished shard. Raises StoreError if it is missing, truncated, not a file,
    belongs to another store or number than those of the manifest, if one is given, or has a column
    of another type than in `types`."""
    path = store / entry.file
    check_size(path, entry.bytes)
    reader = ShardReader(path)
    for name, kind in (types or {}).items():
        _check_type(reader, name, kind)
    if manifest is None:
        return reader
    reason = find_foreign(reader.schema, manifest, entry.batch_number, listed=True)
    if reason is not None:
        raise foreign_error(path, reason)
    return reader


def _check_type(reader: ShardReader, name: str, kind: pa.DataType) -> None:
    if name in reader.schema.names and reader.schema.field(name).type != kind:
        raise StoreError(
            f'the column "{name}" of {reader.path.name} in {reader.path.parent} has the type '
            f"{reader.schema.field(name).type}, not {kind}: re-create the store with the command "
            "that wrote it."
        )


def refuse_damaged_shards(store: Path, manifest: Manifest) -> None:
    """Raises StoreError if a finished shard is missing, of another size, not a file, unreadable or
    foreign. Reads only their footers: `verify_store` reads the rows too."""
    damaged = list(_find_damaged(store, manifest))
    if damaged:
        more = f" {len(damaged) - 1:,} more shards are damaged." if len(damaged) > 1 else ""
        raise StoreError(f"{damaged[0].text}{more}", action="repair", store=store)


def _find_damaged(store: Path, manifest: Manifest) -> Iterator[StoreError]:
    for entry in manifest.shards:
        try:
            open_shard(store, entry, manifest).close()
        except TooManyFilesError:
            raise
        except StoreError as error:
            yield error


def _explain(path: Path, error: Exception) -> StoreError:
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        return too_many_files(path)
    reason = str(error).splitlines()[0]
    return StoreError(
        f"shard {path.name} cannot be read ({reason}): check the store with ",
        Call("clew.verify", (str(path.parent),)),
        ".",
    )


def missing_shard(path: Path) -> StoreError:
    return StoreError(
        f"shard {path.name} is missing from {path.parent}: restore the file, or run ",
        Call("clew.verify", (str(path.parent),), {"repair": True}),
        " and then the command that created the store.",
    )


def too_many_files(path: Path) -> TooManyFilesError:
    """The error for a process that has reached its limit of open files."""
    return TooManyFilesError(
        f"{path.name} cannot be opened: too many open files. Raise this process's limit "
        '("ulimit -n 4096"), or use fewer workers.'
    )


def read_value(array: pa.Array, row: int) -> Any:
    """One row of a column.

    Text and numbers come as Python values, lists of numbers as a flat zero-copy NumPy array, lists
    of strings as a list, and a missing value as None.
    """
    one = array.slice(row, 1)
    if one.null_count:
        return None
    kind = array.type
    if not is_list(kind):
        return one[0].as_py()
    while is_list(one.type):
        one = one.flatten()
    if pa.types.is_string(one.type):
        return one.to_pylist()
    return one.to_numpy(zero_copy_only=True)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


@dataclass(frozen=True, kw_only=True)
class ColumnLayout:
    """One column of one shard: row r holds `counts[r]` items of `item_shape`, from `starts[r]`."""

    dtype: np.dtype
    item_shape: tuple[int, ...]
    starts: Int64[np.ndarray, " rows"]  # in bytes from the beginning of the file
    counts: Int64[np.ndarray, " rows"]  # 1 in a column whose rows all have the same size

    @property
    def item_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.item_shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class ShardLayout:
    """The rows of a shard, and where the requested columns lie in its file."""

    ids: Int64[np.ndarray, " rows"]
    questions: list[str] | None  # None in a store that has none
    columns: dict[str, ColumnLayout]


def read_layout(
    store: Path, entry: ShardEntry, columns: Sequence[str], manifest: Manifest | None = None
) -> ShardLayout:
    """Reads a shard's footer and offsets; the values themselves stay on disk.

    Raises StoreError when the shard is missing, truncated or foreign, or lacks a column.
    """
    reader = open_shard(store, entry, manifest)
    base = reader.whole_file().address
    batches = [reader.record_batch(index) for index in range(reader.num_record_batches)]
    layout = ShardLayout(
        ids=reader.read_ids(),
        questions=_read_questions(reader),
        columns={name: _locate_column(reader, batches, name, base) for name in columns},
    )
    if len(layout.ids) != entry.rows:
        raise StoreError(
            f"shard {entry.file} has {len(layout.ids):,} rows, "
            f"but the manifest says {entry.rows:,}",
            action="repair",
            store=store,
        )
    return layout


def check_size(file: str | Path, expected: int) -> None:
    """Raises StoreError when a shard is missing or its size has changed since it was written."""
    try:
        state = os.stat(file)
        found = state.st_size
    except FileNotFoundError:
        raise missing_shard(Path(file)) from None
    if found == expected and stat.S_ISREG(state.st_mode):
        return
    path = Path(file)
    kind = irregular_kind(path)
    if kind is not None:
        raise StoreError(
            f"{path.name} in {path.parent} is {kind}, not a shard.",
            action="repair",
            store=path.parent,
        )
    raise StoreError(
        f"shard {path.name} in {path.parent} has {found:,} bytes, but the manifest says "
        f"{expected:,}: it was truncated or replaced.",
        action="repair",
        store=path.parent,
    )


def _read_questions(reader: ShardReader) -> list[str] | None:
    if "question_id" not in reader.schema.names:
        return None
    return reader.read_column("question_id").to_pylist()


def _locate_column(
    reader: ShardReader, batches: Sequence[pa.RecordBatch], name: str, base: int
) -> ColumnLayout:
    if name not in reader.schema.names:
        raise StoreError(
            f'{reader.path} has no column "{name}": re-create the samples from their traces with '
            '"clew preprocess".'
        )
    shape, dtype = _item_of(reader, name)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    places = []
    for batch in batches:
        column = batch.column(name)
        if column.null_count:
            raise StoreError(
                f'no "{name}" in {counted(column.null_count, "row")} of {reader.path.name}: this '
                "store cannot be used for training. Re-create it from traces that have that field."
            )
        places.append(_locate_rows(column, size, base))
    starts = [start for start, _ in places] or [np.zeros(0, np.int64)]
    counts = [count for _, count in places] or [np.zeros(0, np.int64)]
    return ColumnLayout(
        dtype=dtype,
        item_shape=shape,
        starts=np.concatenate(starts),
        counts=np.concatenate(counts),
    )


def _is_ragged(kind: pa.DataType) -> bool:
    return is_list(kind) and not pa.types.is_fixed_size_list(kind)


def _item_of(reader: ShardReader, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """What a row consists of: the list's items when it is ragged, else the whole row."""
    kind = reader.schema.field(name).type
    if _is_ragged(kind):
        kind = kind.value_type
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise StoreError(
            f'the column "{name}" of {reader.path.name} holds values of type {kind}, not numbers '
            "that can be read in place",
            action="repair",
            store=reader.path.parent,
        )
    return tuple(shape), np.dtype(kind.to_pandas_dtype())


def _locate_rows(column: pa.Array, item_bytes: int, base: int) -> tuple[np.ndarray, np.ndarray]:
    """The first byte of each row in the file, and the number of items in it."""
    buffers = column.buffers()
    values = buffers[-1]
    # When every row is empty, the buffer lies nowhere in the file.
    first = values.address - base if values is not None and values.size else 0
    if _is_ragged(column.type):
        wide = np.int64 if pa.types.is_large_list(column.type) else np.int32
        items = np.frombuffer(buffers[1], wide, len(column) + 1).astype(np.int64)
    else:
        items = np.arange(len(column) + 1, dtype=np.int64)
    return first + items[:-1] * item_bytes, np.diff(items)
