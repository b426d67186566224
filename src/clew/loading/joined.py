"""Several stores of samples read as one: a batch may hold samples of any of them."""

import threading
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from clew.base.errors import InputError
from clew.loading.reader import Rows, SampleReader, exceeds_cache
from clew.storage import ShardFiles
from clew.storage.files import Bytes, Piece


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
