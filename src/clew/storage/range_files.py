"""Rows of shards at a URL, fetched as they are needed and never stored: for reading a store in an
order that the cache is too small for."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from clew.base.errors import StoreError
from clew.storage.files import Bytes, Piece
from clew.storage.manifest import ShardEntry
from clew.storage.mirror import MirrorFolder
from clew.storage.mirror.download import connections


class RangeFiles:
    """The `ShardFiles` of a store at a URL, without a copy on this machine."""

    def __init__(self, store: Path, shards: list[ShardEntry]) -> None:
        assert isinstance(store, MirrorFolder)
        self._store, self._names = store, [shard.file for shard in shards]

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
        name = self._names[pieces[0][0]]
        ranges = [(start, length) for _, start, _, length in pieces]
        try:
            found = self._store.place.read_ranges(name, ranges)
        except (FileNotFoundError, EOFError):
            raise StoreError(
                f"shard {name} in {self._store} is missing or was truncated",
                action="repair",
                store=self._store,
            ) from None
        for (_, _, place, length), content in zip(pieces, found, strict=True):
            out[place : place + length] = np.frombuffer(content, np.uint8)
