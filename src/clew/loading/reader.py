"""Stores of samples, one or several as one, read by row: the shard of each row, and its offset in
the file."""

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal, Self

import numpy as np
import psutil
import torch
from jaxtyping import Int64, UInt8

from clew.base.errors import InputError, StoreError, TooManyFilesError
from clew.storage.files import (
    Bytes,
    CachedFiles,
    ColumnLayout,
    MappedFiles,
    Piece,
    RangeFiles,
    ReadFiles,
    ShardFiles,
    ShardLayout,
    read_layout,
)
from clew.storage.mirror import MirrorFolder, read_limit
from clew.storage.mirror_cache import ReadAhead, read_ahead
from clew.storage.reader import SchemaCheck, StoreReader

_MAPPED_SHARE = 0.25
_WORD = 8
_SMALLEST_VIEW, _LARGEST_VIEW = 8 << 10, 256 << 10
_FEW_PIECES = 4

Access = Literal["mapped", "cached", "read", "ranges"]
Rows = Int64[np.ndarray, " rows"]


class _Column:
    """Where the rows of one column lie, over all shards opened so far."""

    def __init__(self, first: ColumnLayout, rows: int) -> None:
        self.dtype, self.item_shape = first.dtype, first.item_shape
        self.item_bytes = first.item_bytes
        self.starts = np.zeros(rows, np.int64)
        self.counts = np.zeros(rows, np.int64)
        self.views: dict[int, torch.Tensor] = {}

    def resized(self, rows: int) -> Self:
        """A column of the same kind without rows that are known."""
        other = copy(self)
        other.starts, other.counts = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        other.views = {}
        return other

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "views": {}}  # addresses in the memory of this process


class SampleReader:
    """The columns of a store that training reads. Shards are opened when first touched.

    `access` "mapped" keeps every touched shard mapped, "cached" at most `max_open`; "read" maps
    none and reads piece by piece. None maps a store that fits easily into free memory, and reads a
    larger one. The shards of a store at a URL are downloaded into the cache first, except with
    "ranges", which fetches the rows alone. `ids` are the `global_example_id`s that the rows must
    have, `questions` their questions; `check` checks the columns of each shard.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        *,
        ids: Rows | None = None,
        questions: np.ndarray | None = None,
        check: SchemaCheck | None = None,
        access: Access | None = None,
        max_open: int = 64,
    ) -> None:
        self._store = StoreReader(path, check=check)
        self.path, self.manifest = self._store.path, self._store.manifest
        self.shards = self._store.shards
        self.first_rows = np.cumsum([0, *(shard.rows for shard in self.shards)])
        if not self.rows:
            raise StoreError(f"{path} contains no samples yet: rerun the command that creates it.")
        self.bytes = self.manifest.bytes
        self.access = access or choose_access(self.bytes, self.path)
        self.files = self._open_files(max_open)
        self._ahead: ReadAhead | None = None
        self._ids, self._questions = ids, questions
        self._known = [False] * len(self.shards)
        self._first_rows = self.first_rows.tolist()
        self._lock = threading.Lock()
        self._names = tuple(columns)
        first = self._peek_layout(0) if self.is_remote else self._open_layout(0)
        self.columns = {name: _Column(first.columns[name], self.rows) for name in columns}

    def _open_files(self, max_open: int) -> ShardFiles:
        if self.access == "mapped":
            return MappedFiles(self.path, self.shards)
        if self.access == "ranges":
            return RangeFiles(self.path, self.shards)
        kind = CachedFiles if self.access == "cached" else ReadFiles
        return kind(self.path, self.shards, max_open)

    @property
    def parts(self) -> "Sequence[SampleReader]":
        """The readers of the single stores."""
        return (self,)

    @property
    def rows(self) -> int:
        return int(self.first_rows[-1])

    def shards_of(self, rows: Rows) -> Rows:
        return np.searchsorted(self.first_rows, rows, side="right") - 1

    def locate(self, rows: Rows) -> Rows:
        """The shards of `rows`, located and checked for truncation."""
        shards = self.shards_of(rows)
        self._make_ready(set(shards.tolist()))
        return shards

    def copy_rows(self, column: str, rows: Rows, out: UInt8[np.ndarray, "rows row_bytes"]) -> None:
        """Copies rows of equal size into place, shard by shard; adjacent rows in one piece."""
        shards = self.locate(rows)
        starts = self.columns[column].starts[rows]
        size, flat = out.shape[1], out.reshape(-1)
        apart = (starts[1:] - starts[:-1] != size) | (shards[1:] != shards[:-1])
        firsts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(apart) + 1])
        if len(firsts) > _FEW_PIECES and self._is_small(size):
            views = self._view_rows(column, rows, shards, starts, size)
            torch.cat(views, out=torch.from_numpy(flat.view(np.int64)))
            return
        lengths = np.diff(firsts, append=len(rows)) * size
        pieces = np.stack([shards[firsts], starts[firsts], firsts * size, lengths], axis=1)
        in_order = np.lexsort((pieces[:, 1], pieces[:, 0]))
        self.files.copy(pieces[in_order].tolist(), flat)

    def _is_small(self, size: int) -> bool:
        """Whether rows are better copied in one call.

        Copied one by one, small rows make the threads contend for the GIL; larger ones PyTorch
        would split among threads of its own; and for tiny ones the views would take more memory
        than the rows.
        """
        fits = _SMALLEST_VIEW <= size <= _LARGEST_VIEW and size % _WORD == 0
        return self.access == "mapped" and fits

    def _view_rows(
        self, column: str, rows: Rows, shards: Rows, starts: Rows, size: int
    ) -> tuple[torch.Tensor, ...]:
        """Mapped rows as tensors, each created once: creating one costs as much as copying 10
        kB."""
        known, numbers = self.columns[column].views, rows.tolist()
        for number, shard, start in zip(numbers, shards.tolist(), starts.tolist(), strict=True):
            if number not in known:
                mapped = self.files.view(shard, start, size)
                known[number] = torch.from_numpy(mapped.view(np.int64))
        return itemgetter(*numbers)(known)

    def read_one(self, column: str, row: int) -> np.ndarray:
        """One row like `read_rows`, faster for single rows."""
        shard = bisect_right(self._first_rows, row) - 1
        self._make_ready((shard,))
        kind = self.columns[column]
        size = int(kind.counts[row]) * kind.item_bytes
        content = self.files.view(shard, int(kind.starts[row]), size)
        return content.view(kind.dtype).reshape(-1, *kind.item_shape)

    def read_rows(self, column: str, rows: Rows, shards: Rows) -> list[np.ndarray]:
        """Located rows as arrays `[items, *item_shape]`.

        Copies when files are read; views when they are mapped, read-only unless they are cached.
        """
        kind, view = self.columns[column], self.files.view
        dtype, shape = kind.dtype, (-1, *kind.item_shape)
        sizes = kind.counts[rows] * kind.item_bytes
        if self.access == "ranges":
            pieces = self._fetch_rows(shards, kind.starts[rows], sizes)
            return [piece.view(dtype).reshape(shape) for piece in pieces]
        places = zip(shards.tolist(), kind.starts[rows].tolist(), sizes.tolist(), strict=True)
        return [view(*place).view(dtype).reshape(shape) for place in places]

    def _fetch_rows(self, shards: Rows, starts: Rows, sizes: Rows) -> list[np.ndarray]:
        """All at once: one by one, every row would wait for an answer."""
        ends = np.cumsum(-(-sizes // _WORD) * _WORD)  # aligned
        places = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        content = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        pieces = np.stack([shards, starts, places, sizes], axis=1)
        in_order = np.lexsort((starts, shards))
        self.files.copy(pieces[in_order][sizes[in_order] > 0].tolist(), content)
        spans = zip(places.tolist(), (places + sizes).tolist(), strict=True)
        return [content[first:end] for first, end in spans]

    @property
    def is_remote(self) -> bool:
        """Whether the store is at a URL."""
        return isinstance(self.path, MirrorFolder)

    @property
    def exceeds_cache(self) -> bool:
        """Whether the store is at a URL and larger than the cache."""
        return exceeds_cache(self.path, self.bytes)

    def expect(self, rows: Rows) -> None:
        """Says which rows will be read, in order: the shards of a store at a URL are downloaded
        ahead."""
        if self.is_remote and self.access != "ranges":
            shards, first = np.unique(self.shards_of(rows), return_index=True)
            in_order = [self.shards[shard] for shard in shards[np.argsort(first)]]
            self._ahead = read_ahead(self.path, in_order)

    def _make_ready(self, shards: Collection[int]) -> None:
        if self._ahead is not None:
            self._ahead.reached(self.shards[shard].file for shard in shards)
        for shard in shards:
            if not self._known[shard]:
                self._look_into(shard)
        self.files.check(shards)

    def _look_into(self, shard: int) -> None:
        with self._lock:
            if self._known[shard]:
                return
            first, end = self.first_rows[shard : shard + 2].tolist()
            entry = self.shards[shard]
            layout = self._read_layout(shard)
            if not self._is_as_listed(layout, first, end):
                raise StoreError(
                    f"splits.csv and {entry.file} in {self.path} list different samples: run the "
                    '"clew preprocess" command again.'
                )
            for name, found in layout.columns.items():
                self.columns[name].starts[first:end] = found.starts
                self.columns[name].counts[first:end] = found.counts
            self._known[shard] = True

    def _read_layout(self, number: int) -> ShardLayout:
        try:
            return self._open_layout(number)
        except TooManyFilesError:
            self.files.let_go()
        return self._open_layout(number)

    def _open_layout(self, number: int) -> ShardLayout:
        if self.access == "ranges":
            return self._peek_layout(number)
        entry = self.shards[number]
        return read_layout(self._store.open(entry, self.files.let_go), entry.rows, self._names)

    def _peek_layout(self, number: int) -> ShardLayout:
        return read_layout(self._store.peek(number), self.shards[number].rows, self._names)

    def _is_as_listed(self, layout: ShardLayout, first: int, end: int) -> bool:
        # The ids of every store start at 0: only the questions tell two stores apart.
        ids, questions = self._ids, self._questions
        if ids is not None and not np.array_equal(layout.ids, ids[first:end]):
            return False
        return questions is None or layout.questions == questions[first:end].tolist()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_ahead": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def choose_access(size: int, path: Path) -> Access:
    """How to read stores of this many bytes, the first of them at `path`, if nothing else is said.
    What is mapped stays in the cache: it must leave room for others."""
    is_large = size > _MAPPED_SHARE * psutil.virtual_memory().available
    return "read" if is_large or exceeds_cache(path, 2 * size) else "mapped"


def exceeds_cache(path: Path, size: int) -> bool:
    """Whether as many bytes of a store do not fit into the cache that it needs."""
    return isinstance(path, MirrorFolder) and size > read_limit(path.cache_dir)


class JoinedReader(SampleReader):
    """Reads stores with the same columns as one store: rows and shards are numbered through all of
    them, in their order. Nothing is copied. Raises InputError for columns of different shapes."""

    def __init__(self, parts: Sequence[SampleReader]) -> None:
        self._parts, self.path, self.manifest = parts, parts[0].path, parts[0].manifest
        self.shards = [shard for part in parts for shard in part.shards]
        self.first_rows = np.cumsum([0, *(shard.rows for shard in self.shards)])
        self.first_shards = np.cumsum([0, *(len(part.shards) for part in parts)])
        self.bytes = sum(part.bytes for part in parts)
        self._first_of_parts = np.cumsum([0, *(part.rows for part in parts)]).tolist()
        self.access = parts[0].access
        self._ahead = None
        self.files = _JoinedFiles([part.files for part in parts], self.first_shards)
        self._known = [False] * len(self.shards)
        self._first_rows = self.first_rows.tolist()
        self._lock = threading.Lock()
        self.columns = {
            name: column.resized(self.rows) for name, column in parts[0].columns.items()
        }
        for part in parts[1:]:
            self._refuse_other_shape(part)

    @property
    def parts(self) -> Sequence[SampleReader]:
        return self._parts

    def _refuse_other_shape(self, part: SampleReader) -> None:
        for name, ours in self.columns.items():
            theirs = part.columns[name]
            if (ours.item_shape, ours.dtype) != (theirs.item_shape, theirs.dtype):
                raise InputError(
                    f'"{name}" of {self.path} has shape {list(ours.item_shape)} and type '
                    f"{ours.dtype}, but that of {part.path} {list(theirs.item_shape)} and "
                    f"{theirs.dtype}: use samples made with the same settings."
                )

    @property
    def is_remote(self) -> bool:
        return any(part.is_remote for part in self.parts)

    @property
    def exceeds_cache(self) -> bool:
        return exceeds_cache(self.path, self.bytes)

    def expect(self, rows: Rows) -> None:
        for part, start, end in zip(
            self.parts, self._first_of_parts[:-1], self._first_of_parts[1:], strict=True
        ):
            part.expect(rows[(rows >= start) & (rows < end)] - start)

    def _look_into(self, shard: int) -> None:
        number = int(np.searchsorted(self.first_shards, shard, side="right")) - 1
        part, inner = self.parts[number], shard - int(self.first_shards[number])
        part.locate(part.first_rows[inner : inner + 1])
        first, end = self.first_rows[shard : shard + 2].tolist()
        before, after = part.first_rows[inner : inner + 2].tolist()
        with self._lock:
            for name, column in self.columns.items():
                column.starts[first:end] = part.columns[name].starts[before:after]
                column.counts[first:end] = part.columns[name].counts[before:after]
            self._known[shard] = True


class _JoinedFiles:
    """The files of several stores, their shards numbered through all of them."""

    def __init__(self, parts: Sequence[ShardFiles], first_shards: np.ndarray) -> None:
        self._parts, self._firsts = parts, first_shards.tolist()
        self._part_of = np.repeat(np.arange(len(parts)), np.diff(first_shards)).tolist()

    def check(self, shards: Iterable[int]) -> None:
        for part, some in groupby(shards, key=self._part_of.__getitem__):
            self._parts[part].check([shard - self._firsts[part] for shard in some])

    def copy(self, pieces: Iterable[Piece], out: Bytes) -> None:
        for part, some in groupby(pieces, key=lambda piece: self._part_of[piece[0]]):
            first = self._firsts[part]
            inner = [(shard - first, start, place, size) for shard, start, place, size in some]
            self._parts[part].copy(inner, out)

    def view(self, shard: int, start: int, length: int) -> Bytes:
        part = self._part_of[shard]
        return self._parts[part].view(shard - self._firsts[part], start, length)

    def let_go(self) -> None:
        for part in self._parts:
            part.let_go()
