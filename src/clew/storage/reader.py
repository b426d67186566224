"""Read memory-mapped shards: opening one reads only its footer, a row only its own bytes."""

import errno
import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.base.errors import Call, StoreError, TooManyFilesError
from clew.base.texts import shortened
from clew.base.urls import UrlPath
from clew.storage.arrow import (
    ARROW_ERRORS,
    BatchHeaders,
    as_numpy,
    check_batch,
    check_types,
    flatten,
    footer_length,
    is_list,
    locate_values,
    map_file,
)
from clew.storage.manifest import Manifest, ShardEntry, read_manifest
from clew.storage.mirror import MirrorFolder, open_folder
from clew.storage.mirror_cache import Hold, ReadAhead, hold_shard, is_cached, read_ahead
from clew.storage.origin import ID_COLUMN, find_foreign, foreign_error
from clew.storage.place import Range
from clew.storage.places import open_place
from clew.storage.reading import irregular_kind

# Raises ValueError if a shard does not have the columns of its kind of store; returns those that
# have a value in every row.
SchemaCheck = Callable[[pa.Schema, Manifest], Collection[str]]
# Most footers take a few kilobytes.
_END_BYTES = 1 << 16


class ShardReader:
    """One mapped shard, or one whose `content` is in memory. Record batches are opened and checked
    when first touched. `hold` keeps the shard of a store at a URL in the cache."""

    def __init__(
        self, path: Path, hold: Hold | None = None, content: pa.Buffer | None = None
    ) -> None:
        self.path, self._hold = path, hold
        try:
            self.content = map_whole(path) if content is None else content
            self._file = pa.ipc.open_file(self.content)
            check_types(self._file.schema)
            self._headers = BatchHeaders(self.content)
        except FileNotFoundError:
            raise missing_shard(path) from None
        except ARROW_ERRORS as error:
            raise _explain(path, error) from None
        self._batches: list[pa.RecordBatch | None] = [None] * self._file.num_record_batches
        self.complete_columns: Collection[str] = ()
        self._row_of_id: np.ndarray | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema

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
            for name in self.complete_columns:
                if batch.column(name).null_count:
                    raise ValueError(f'rows have no "{name}"')
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

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        """Some columns of the whole shard, without copying."""
        return pa.table({name: self.read_column(name) for name in names})

    def count_missing(self, name: str) -> int:
        """The rows of a column that have no value."""
        return sum(self.record_batch(i).column(name).null_count for i in range(len(self._batches)))

    def read_row(self, batch: int, row: int) -> tuple[pa.RecordBatch, int]:
        """A batch that has the row, and which of its rows it is."""
        return self.record_batch(batch), row

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
        return as_numpy(column)

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


class RangeShard(ShardReader):
    """A shard at a URL, of which only what is asked for is fetched: its footer, headers and offsets
    once, then the bytes of some rows or columns, in one round trip. They lie at their places in
    memory of the shard's size, whose untouched pages take none."""

    def __init__(self, store: MirrorFolder, entry: ShardEntry) -> None:
        self.path, self._place, self._size = store / entry.file, store.place, entry.bytes
        self._pieces: list[tuple[int, memoryview]] = []
        try:
            self._fetch_footer()
            memory = self._assemble(self._pieces)
            super().__init__(self.path, content=pa.py_buffer(memory))
            blocks = (self._headers.place(i) for i in range(self.num_record_batches))
            self._keep(memory, self._fetch(blocks))
            self._keep(memory, self._fetch(self._list_offsets()))
        except ARROW_ERRORS as error:
            raise _explain(self.path, error) from None

    def read_column(self, name: str) -> pa.ChunkedArray:
        return self.read_columns([name]).column(0)

    def read_columns(self, names: Sequence[str]) -> pa.Table:
        batches = [self.record_batch(i) for i in range(self.num_record_batches)]
        known = [name for name in names if name in self.schema.names]
        columns = [(batch.column(name), 0, len(batch)) for batch in batches for name in known]
        return self._with_values(columns).read_columns(names)

    def read_row(self, batch: int, row: int) -> tuple[pa.RecordBatch, int]:
        columns = [(column, row, 1) for column in self.record_batch(batch).columns]
        return self._with_values(columns).read_row(batch, row)

    def _with_values(self, rows: Sequence[tuple[pa.Array, int, int]]) -> ShardReader:
        """The same shard with the values of these rows: arrays, their first rows and numbers."""
        found = (locate_values(*one) for one in rows)
        ranges = [(start - self.content.address, size) for start, size in found if size]
        memory = self._assemble([*self._pieces, *self._fetch(ranges)])
        return ShardReader(self.path, content=pa.py_buffer(memory))

    def _fetch_footer(self) -> None:
        """In one round trip, unless the settings of the store, which it contains, are many."""
        size = min(_END_BYTES, self._size)
        [(_, tail)] = self._pieces = self._fetch([(self._size - size, size)])
        length = footer_length(tail, self._size)
        if length > size:
            self._pieces = self._fetch([(self._size - length, length)])

    def _list_offsets(self) -> Iterator[Range]:
        """Where the lengths of all rows lie, and which of them have no value."""
        for index in range(self.num_record_batches):
            self._headers.check(index)
            for column in self._file.get_batch(index).columns:
                for buffer in column.buffers()[:-1]:
                    if buffer is not None and buffer.size:
                        yield buffer.address - self.content.address, buffer.size

    def _fetch(self, ranges: Iterable[Range]) -> list[tuple[int, memoryview]]:
        wanted = list(ranges)
        if any(start < 0 or size < 0 or start + size > self._size for start, size in wanted):
            raise ValueError("a header points outside of it")
        try:
            found = self._place.read_ranges(self.path.name, wanted)
        except (FileNotFoundError, EOFError):
            raise StoreError(
                f"shard {self.path.name} is missing from {self.path.parent}, or has fewer than the "
                f"{self._size:,} bytes that the manifest says",
                action="repair",
                store=self.path.parent,
            ) from None
        return [(start, piece) for (start, _), piece in zip(wanted, found, strict=True)]

    def _keep(self, memory: mmap.mmap, pieces: Sequence[tuple[int, memoryview]]) -> None:
        self._pieces += pieces
        _write(memory, pieces)

    def _assemble(self, pieces: Sequence[tuple[int, memoryview]]) -> mmap.mmap:
        memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(getattr(mmap, "MADV_NOHUGEPAGE", mmap.MADV_NORMAL))
        _write(memory, pieces)
        return memory


def _write(memory: mmap.mmap, pieces: Sequence[tuple[int, memoryview]]) -> None:
    for start, piece in pieces:
        memory[start : start + len(piece)] = piece


class StoreReader:
    """A store's manifest and its shards; at most `max_open` shards are mapped at a time. `check`
    checks the columns of every shard that is opened. Shards that differ in the type of a column are
    refused. The shards of a store at a URL are downloaded when they are opened; while they are
    opened one after another, the next ones are on their way."""

    def __init__(
        self, store: str | Path, max_open: int = 64, check: SchemaCheck | None = None
    ) -> None:
        self.path = open_folder(store)
        self.manifest: Manifest = read_manifest(self.path)
        self.shards = sorted(self.manifest.shards, key=lambda shard: shard.batch_number)
        self._max_open, self._check = max_open, check
        self._first: tuple[str, pa.Schema] | None = None
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self._peeked: OrderedDict[int, RangeShard] = OrderedDict()
        self._last = -1
        self._ahead: ReadAhead | None = None

    def check_sizes(self) -> None:
        """Raises StoreError if a shard is missing or its size has changed, without opening it."""
        if isinstance(self.path, MirrorFolder):
            refuse_damaged_shards(self.path, self.manifest)
            return
        for shard in self.shards:
            check_size(self.path / shard.file, shard.bytes)

    def shard(self, index: int) -> ShardReader:
        """The reader of finished shard number `index`."""
        if index in self._open:
            self._open.move_to_end(index)
            return self._open[index]
        self._look_ahead(index)
        reader = self._open[index] = self.open(self.shards[index])
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)
        return reader

    def _look_ahead(self, index: int) -> None:
        if index != self._last + 1 or not index:
            self._ahead = None
        elif self._ahead is None:
            self._ahead = read_ahead(self.path, self.shards[index:])
        else:
            self._ahead.reached([self.shards[index].file])
        self._last = index

    def open(self, entry: ShardEntry, let_go: Callable[[], None] | None = None) -> ShardReader:
        """A reader of a finished shard that is not kept open here; see `open_shard`."""
        let_go = let_go or self._open.clear
        reader = open_shard(self.path, entry, self.manifest, self._check, let_go)
        self._check_same_types(reader)
        return reader

    def peek(self, index: int) -> ShardReader:
        """Shard number `index` for reading little of it: of one at a URL, only what is asked for is
        fetched, unless the whole of it is here already."""
        entry = self.shards[index]
        if not isinstance(self.path, MirrorFolder) or is_cached(self.path, entry):
            return self.shard(index)
        if index not in self._peeked:
            shard = RangeShard(self.path, entry)
            shard.complete_columns = _check_shard(shard, entry, self.manifest, self._check)
            self._check_same_types(shard)
            self._peeked[index] = shard
            while len(self._peeked) > self._max_open:
                self._peeked.popitem(last=False)
        return self._peeked[index]

    def _check_same_types(self, reader: ShardReader) -> None:
        if self._first is None:
            self._first = (reader.path.name, reader.schema)
        other, first = self._first
        for field in () if reader.schema.equals(first) else reader.schema:
            if field.name in first.names and first.field(field.name).type != field.type:
                raise _wrong_columns(
                    reader.path,
                    f"has the column {shortened(field.name)} with the type "
                    f"{shortened(str(field.type))}, but in {other} it is "
                    f"{shortened(str(first.field(field.name).type))}",
                )


def open_shard(
    store: Path,
    entry: ShardEntry,
    manifest: Manifest | None = None,
    check: SchemaCheck | None = None,
    let_go: Callable[[], None] = lambda: None,
) -> ShardReader:
    """The reader of a finished shard. Raises StoreError if it is missing, truncated, not a file,
    belongs to another store or number than those of the manifest, if one is given, or fails the
    check of its columns. `let_go` releases what the caller holds in the cache."""
    path, hold = store / entry.file, hold_shard(store, entry, let_go)
    check_size(path, entry.bytes)
    reader = ShardReader(path, hold)
    if manifest is not None:
        reader.complete_columns = _check_shard(reader, entry, manifest, check)
    return reader


def _check_shard(
    reader: ShardReader,
    entry: ShardEntry,
    manifest: Manifest,
    check: SchemaCheck | None,
) -> Collection[str]:
    """The columns that have a value in every row."""
    reason = find_foreign(reader.schema, manifest, entry.batch_number, listed=True)
    if reason is not None:
        raise foreign_error(reader.path, reason)
    try:
        return check(reader.schema, manifest) if check else ()
    except ValueError as error:
        raise _wrong_columns(reader.path, error) from None


def map_whole(path: Path) -> pa.Buffer:
    """A file that stays mapped as long as the buffer, or a view of it, lives, but not open."""
    with map_file(path) as file:
        return file.read_buffer()


def _wrong_columns(path: Path, error: object) -> StoreError:
    return StoreError(
        f"{path.name} in {path.parent} {error}: re-create the store with the command that wrote it."
    )


def refuse_damaged_shards(store: Path, manifest: Manifest) -> None:
    """Raises StoreError if a finished shard is missing, of another size, not a file, unreadable or
    foreign. Reads only their footers, at a URL only their sizes: `verify_store` reads the rows
    too."""
    is_url = isinstance(store, UrlPath | MirrorFolder)
    find = _find_damaged_at_url if is_url else _find_damaged
    damaged = list(find(store, manifest))
    if damaged:
        more = f" {len(damaged) - 1:,} more shards are damaged." if len(damaged) > 1 else ""
        raise StoreError(f"{damaged[0].text}{more}", action="repair", store=store)


def _find_damaged(store: Path, manifest: Manifest) -> Iterator[StoreError]:
    for entry in manifest.shards:
        try:
            open_shard(store, entry, manifest)
        except TooManyFilesError:
            raise
        except StoreError as error:
            yield error


def _find_damaged_at_url(store: Path, manifest: Manifest) -> Iterator[StoreError]:
    place = store.place if isinstance(store, MirrorFolder) else open_place(store)
    found = place.entries() if manifest.shards else {}
    for entry in manifest.shards:
        here = found.get(entry.file)
        if here is None:
            yield missing_shard(store / entry.file)
        elif here.size != entry.bytes:
            yield _other_size(store / entry.file, here.size, entry.bytes)


def _explain(path: Path, error: Exception) -> StoreError:
    if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
        return too_many_files(path)
    reason = str(error).splitlines()[0]
    return StoreError(
        f"shard {path.name} cannot be read ({reason}): check the store with ",
        Call("clew.verify", (f"{path.parent}",)),
        ".",
    )


def missing_shard(path: Path) -> StoreError:
    return StoreError(
        f"shard {path.name} is missing from {path.parent}: restore the file, or run ",
        Call("clew.verify", (f"{path.parent}",), {"repair": True}),
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
    if not is_list(array.type):
        return one[0].as_py()
    one = flatten(one)
    if pa.types.is_string(one.type):
        return one.to_pylist()
    return one.to_numpy(zero_copy_only=True)


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
    raise _other_size(path, found, expected)


def _other_size(path: Path, found: int, expected: int) -> StoreError:
    return StoreError(
        f"shard {path.name} in {path.parent} has {found:,} bytes, but the manifest says "
        f"{expected:,}: it was truncated or replaced.",
        action="repair",
        store=path.parent,
    )
