"""The bytes of a store's shards, and where the values of a column lie in them. Mapped files are the
fastest, but touched pages count as memory of the process until the system needs them; files read
piece by piece leave no page resident; those at a URL are fetched."""

import ctypes
import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, UInt8

from clew.base.errors import Call, StoreError
from clew.base.texts import counted
from clew.storage.arrow import is_list
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder
from clew.storage.mirror_cache import Hold, hold_shard
from clew.storage.place import connections
from clew.storage.reader import ShardReader, check_size, map_whole, too_many_files

Bytes = UInt8[np.ndarray, " bytes"]
Opened = TypeVar("Opened")
# the shard, its first byte to read, the destination, the number of bytes
Piece = tuple[int, int, int, int]


# The store of a shard, and what its manifest says about it.
Located = tuple[Path, ShardEntry]
# The first byte of each row, and its number of items.
_Rows = tuple[np.ndarray, np.ndarray]


class ShardFiles(Protocol):
    """Access to the bytes of shards, addressed by the shard's index in the store."""

    def check(self, shards: Iterable[int]) -> None:
        """Call before every batch; raises StoreError when a shard was truncated. Touching a mapped
        page beyond the end of a truncated file would kill the process."""

    def copy(self, pieces: Iterable[Piece], out: Bytes) -> None:
        """Copies pieces of shards into their destinations in `out`."""

    def view(self, shard: int, start: int, length: int) -> Bytes:
        """The requested bytes, without a copy where possible. Treat them as read-only."""

    def let_go(self) -> None:
        """Closes open files and keeps fewer open from now on: the process reached its file
        limit."""


class MappedFiles:
    """Every shard that was touched stays mapped, and no file stays open; with `max_open`, at most
    as many, of which the least recently used is unmapped first.

    With `max_open`, arrays from `view` are writable; writing to them does not change the file.
    """

    def __init__(self, shards: Sequence[Located], max_open: int | None = None) -> None:
        self._files = _Recent(shards, max_open, _map if max_open is None else _map_privately)

    def check(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self._files.check(shard)

    def copy(self, pieces: Iterable[Piece], out: Bytes) -> None:
        for shard, some in groupby(pieces, key=itemgetter(0)):
            content = self._files[shard]
            for _, start, place, length in some:
                out[place : place + length] = content[start : start + length]

    def view(self, shard: int, start: int, length: int) -> Bytes:
        return self._files[shard][start : start + length]

    def let_go(self) -> None:
        self._files.let_go()


class ReadFiles:
    """At most `max_open` files are open; the least recently used is closed first."""

    def __init__(self, shards: Sequence[Located], max_open: int) -> None:
        self._files = _Recent(shards, max_open, _Descriptor)

    def check(self, shards: Iterable[int]) -> None:
        """Nothing to do: a short read is detected."""

    def let_go(self) -> None:
        self._files.let_go()

    def copy(self, pieces: Iterable[Piece], out: Bytes) -> None:
        for shard, start, place, length in pieces:
            self._read(shard, start, out[place : place + length])

    def view(self, shard: int, start: int, length: int) -> Bytes:
        out = np.empty(length, np.uint8)
        self._read(shard, start, out)
        return out

    def _read(self, shard: int, start: int, out: Bytes) -> None:
        descriptor, done = self._files[shard], 0
        while done < len(out):
            try:
                more = os.preadv(descriptor.number, [out[done:].data], start + done)
            except OSError as error:
                raise self._files.unreadable(shard, str(error)) from None
            if not more:
                self._files.check(shard)
                raise self._files.unreadable(shard, "it was truncated while being read")
            done += more


class _Recent(Generic[Opened]):
    """A thread-safe LRU cache of shards opened with `open_file`; None keeps them all."""

    def __init__(
        self, shards: Sequence[Located], max_open: int | None, open_file: Callable[[str], Opened]
    ) -> None:
        self._shards = shards
        self._paths = [str(store / entry.file) for store, entry in shards]
        self._first_seen: dict[int, tuple[int, int, int]] = {}
        self._max_open, self._open_file = max_open, open_file
        self._open: OrderedDict[int, tuple[Opened, Hold | None]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, shard: int) -> None:
        store, entry = self._shards[shard]
        if shard not in self._open and (self._max_open is None or isinstance(store, MirrorFolder)):
            self[shard]  # it may have left the cache
        check_size(self._paths[shard], entry.bytes)

    def unreadable(self, shard: int, reason: str) -> StoreError:
        path = Path(self._paths[shard])
        return StoreError(
            f"shard {path.name} in {path.parent} cannot be read ({reason}): check the disk, then "
            "the store with ",
            Call("clew.verify", (f"{path.parent}",)),
            ".",
        )

    def __getitem__(self, shard: int) -> Opened:
        if self._max_open is None and (found := self._open.get(shard)) is not None:
            return found[0]
        with self._lock:
            found = self._open.get(shard)
            if found is not None:
                self._open.move_to_end(shard)
                return found[0]
        hold = hold_shard(*self._shards[shard], self.let_go)
        with self._lock:
            if hold is None:
                self._check_same(shard)
            while self._max_open is not None and len(self._open) >= self._max_open:
                self._open.popitem(last=False)
            opened = self._try_to_open(self._paths[shard])
            self._open[shard] = (opened, hold)
        return opened

    def let_go(self) -> None:
        with self._lock:
            self._halve()

    def _halve(self) -> None:
        """Keep half as many files open: the system's limit is lower than ours."""
        if self._max_open is not None:
            self._max_open = max(1, len(self._open) // 2)
            self._open.clear()

    def _check_same(self, shard: int) -> None:
        """Checks that a reopened shard is still the file whose layout was read."""
        check_size(self._paths[shard], self._shards[shard][1].bytes)
        found = os.stat(self._paths[shard])
        seen = (found.st_dev, found.st_ino, found.st_mtime_ns)
        if self._first_seen.setdefault(shard, seen) != seen:
            path = Path(self._paths[shard])
            raise StoreError(
                f"shard {path.name} in {path.parent} was replaced while it was being read: run "
                "the command again."
            )

    def _try_to_open(self, path: str) -> Opened:
        try:
            return self._open_file(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._halve()
        try:
            return self._open_file(path)
        except OSError:
            raise too_many_files(Path(path)) from None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class _Descriptor:
    """An open file that closes itself when the last reader releases it: another thread may still be
    reading when the file leaves the cache."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _map(path: str) -> Bytes:
    """A view of the file by address, because PyTorch warns about read-only arrays. Treat it as
    read-only all the same."""
    buffer = map_whole(Path(path))
    place = (ctypes.c_uint8 * buffer.size).from_address(buffer.address)
    place.owner = buffer  # keeps the buffer mapped as long as the array lives
    return np.frombuffer(place, np.uint8)


def _map_privately(path: str) -> Bytes:
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)


class RangeFiles:
    """The `ShardFiles` of a store at a URL, without a copy on this machine."""

    def __init__(self, shards: Sequence[Located]) -> None:
        self._shards = shards

    def check(self, shards: Iterable[int]) -> None:
        """Nothing to do: a short answer is detected."""

    def copy(self, pieces: Iterable[Piece], out: Bytes) -> None:
        """All shards at the same time, the pieces of each in one round trip."""
        by_shard = [list(some) for _, some in groupby(pieces, key=itemgetter(0))]
        futures = [connections().submit(self._copy, some, out) for some in by_shard]
        for future in futures:
            future.result()

    def view(self, shard: int, start: int, length: int) -> Bytes:
        out = np.empty(length, np.uint8)
        self._copy([(shard, start, 0, length)], out)
        return out

    def let_go(self) -> None:
        """Nothing to do: no file is open."""

    def _copy(self, pieces: list[Piece], out: Bytes) -> None:
        store, entry = self._shards[pieces[0][0]]
        assert isinstance(store, MirrorFolder)
        ranges = [(start, length) for _, start, _, length in pieces]
        try:
            found = store.place.read_ranges(entry.file, ranges)
        except (FileNotFoundError, EOFError):
            raise StoreError(
                f"shard {entry.file} in {store} is missing or was truncated",
                action="repair",
                store=store,
            ) from None
        for (_, _, place, length), content in zip(pieces, found, strict=True):
            out[place : place + length] = np.frombuffer(content, np.uint8)


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


def read_layout(reader: ShardReader, rows: int, columns: Sequence[str]) -> ShardLayout:
    """Reads a shard's offsets; the values themselves stay where they are. Raises StoreError when
    the shard does not have as many rows as the manifest says, or lacks a column."""
    layout = ShardLayout(
        ids=reader.read_ids(),
        questions=_read_questions(reader),
        columns={name: _locate_column(reader, name) for name in columns},
    )
    if len(layout.ids) != rows:
        raise StoreError(
            f"shard {reader.path.name} has {len(layout.ids):,} rows, "
            f"but the manifest says {rows:,}",
            action="repair",
            store=reader.path.parent,
        )
    return layout


def _read_questions(reader: ShardReader) -> list[str] | None:
    if "question_id" not in reader.schema.names:
        return None
    return reader.read_column("question_id").to_pylist()


def _locate_column(reader: ShardReader, name: str) -> ColumnLayout:
    if name not in reader.schema.names:
        raise StoreError(
            f'{reader.path} has no column "{name}": re-create the samples from their traces with '
            '"clew preprocess".'
        )
    _refuse_missing(reader, name)
    shape, dtype = _item_of(reader, name)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    places = [
        _locate_rows(reader.record_batch(index).column(name), size, reader.content.address)
        for index in range(reader.num_record_batches)
    ]
    starts = [start for start, _ in places] or [np.zeros(0, np.int64)]
    counts = [count for _, count in places] or [np.zeros(0, np.int64)]
    return ColumnLayout(
        dtype=dtype,
        item_shape=shape,
        starts=np.concatenate(starts),
        counts=np.concatenate(counts),
    )


def _refuse_missing(reader: ShardReader, name: str) -> None:
    if count := reader.count_missing(name):
        raise StoreError(
            f'no "{name}" in {counted(count, "row")} of {reader.path.name}: this store cannot be '
            "used for training. Re-create it from traces that have that field."
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


def _locate_rows(column: pa.Array, item_bytes: int, base: int) -> _Rows:
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
