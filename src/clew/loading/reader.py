"""Stores of samples, one or several as one, read by row: the shard of each row, and its offset in
the file."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import torch
from jaxtyping import Int64, UInt8

from clew.base.errors import InputError, StoreError, TooManyFilesError
from clew.storage.files import (
    ColumnLayout,
    Located,
    MappedFiles,
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

    def __init__(self, first: "ColumnLayout | _Column", rows: int) -> None:
        self.dtype: np.dtype = first.dtype
        self.item_shape: tuple[int, ...] = first.item_shape
        self.item_bytes: int = first.item_bytes
        self.starts = np.zeros(rows, np.int64)
        self.counts = np.zeros(rows, np.int64)
        self.views: dict[int, torch.Tensor] = {}

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
        if not self.manifest.rows:
            raise StoreError(f"{path} contains no samples yet: rerun the command that creates it.")
        self._ids, self._questions = ids, questions
        self._names = tuple(columns)
        self.access = access or choose_access(self.manifest.bytes, self.path)
        self._open([(self.path, shard) for shard in self._store.shards], max_open)
        first = self._peek_layout(0) if self.is_remote else self._open_layout(0)
        self.columns = {name: _Column(first.columns[name], self.rows) for name in columns}

    def _open(self, located: Sequence[Located], max_open: int) -> None:
        self._located, self.shards = located, [shard for _, shard in located]
        self._max_open = max_open
        self.first_rows = np.cumsum([0, *(shard.rows for shard in self.shards)])
        self.bytes = sum(shard.bytes for shard in self.shards)
        self.files = self._open_files()
        self._ahead: ReadAhead | None = None
        self._known = [False] * len(self.shards)
        self._first_rows = self.first_rows.tolist()
        self._lock = threading.Lock()

    def _open_files(self) -> ShardFiles:
        if self.access == "ranges":
            return RangeFiles(self._located)
        if self.access == "read":
            return ReadFiles(self._located, self._max_open)
        return MappedFiles(self._located, self._max_open if self.access == "cached" else None)

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
            try:
                layout = self._read_layout(shard, self.files.let_go)
            except TooManyFilesError:
                self.files.let_go()
                layout = self._read_layout(shard, self.files.let_go)
            for name, found in layout.columns.items():
                self.columns[name].starts[first:end] = found.starts
                self.columns[name].counts[first:end] = found.counts
            self._known[shard] = True

    def _read_layout(self, number: int, let_go: Callable[[], None]) -> ShardLayout:
        """Where the rows of a shard lie, which must be those that were given."""
        layout = self._open_layout(number, let_go)
        first, end = self.first_rows[number : number + 2].tolist()
        if not self._is_as_listed(layout, first, end):
            raise StoreError(
                f"splits.csv and {self.shards[number].file} in {self.path} list different samples: "
                'run the "clew preprocess" command again.'
            )
        return layout

    def _open_layout(self, number: int, let_go: Callable[[], None] | None = None) -> ShardLayout:
        if self.access == "ranges":
            return self._peek_layout(number)
        entry = self.shards[number]
        return read_layout(self._store.open(entry, let_go), entry.rows, self._names)

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
        self.access = parts[0].access
        located = [shard for part in parts for shard in part._located]
        self._open(located, sum(part._max_open for part in parts))
        self._part_of = [(part, number) for part in parts for number in range(len(part.shards))]
        self.columns = {
            name: _Column(column, self.rows) for name, column in parts[0].columns.items()
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

    def expect(self, rows: Rows) -> None:
        first = 0
        for part in self.parts:
            part.expect(rows[(rows >= first) & (rows < first + part.rows)] - first)
            first += part.rows

    def _read_layout(self, number: int, let_go: Callable[[], None]) -> ShardLayout:
        part, inner = self._part_of[number]
        return part._read_layout(inner, let_go)
