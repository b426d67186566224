"""Shards of a store at a URL are downloaded before they are needed, in the order of an epoch."""

import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from clew.base.errors import ClewError
from clew.storage.manifest import ShardEntry
from clew.storage.mirror.cache import CacheFullError, hold_shard
from clew.storage.mirror.limits import read_limit
from clew.storage.mirror.path import MirrorFolder

# While the end of one shard is hashed, the next one is on its way.
_SHARDS_AT_ONCE = 2
_SHARE_OF_CACHE = 0.25


def read_ahead(store: Path, shards: Sequence[ShardEntry]) -> "ReadAhead | None":
    """Starts to download the shards in this order; None if the store is on this machine."""
    if not isinstance(store, MirrorFolder) or not shards:
        return None
    return ReadAhead(store, shards)


class ReadAhead:
    """Stays at most a quarter of the cache ahead of the last shard that was `reached`, so that
    nothing is removed before it was used. Errors are left to the reader, who needs the shard. Ends
    with the last reference to it."""

    def __init__(self, store: MirrorFolder, shards: Sequence[ShardEntry]) -> None:
        budget = int(_SHARE_OF_CACHE * read_limit(store.cache_dir))
        queue = _Queue([shard.bytes for shard in shards], budget)
        self._queue, self._place = queue, {shard.file: at for at, shard in enumerate(shards)}
        weakref.finalize(self, queue.stop).atexit = False
        for _ in range(_SHARDS_AT_ONCE):
            # Daemons only wait: the requests run in threads that end in order.
            threading.Thread(target=_work, args=(queue, store, shards), daemon=True).start()

    def reached(self, files: Iterable[str]) -> None:
        """Called with the shards that are needed now."""
        places = [self._place[file] for file in files if file in self._place]
        if places:
            self._queue.reach(max(places))


class _Queue:
    """The next shard to download, and when."""

    def __init__(self, sizes: Sequence[int], budget: int) -> None:
        self._starts = [0, *accumulate(sizes)]
        self._budget, self._next, self._reached, self._ended = budget, 0, 0, False
        self._change = threading.Condition()

    def take(self) -> int | None:
        """The place of the next shard, as soon as it is near enough; None at the end."""
        with self._change:
            self._change.wait_for(self._may_go_on)
            if self._ended or self._next + 1 >= len(self._starts):
                return None
            self._next += 1
            return self._next - 1

    def _may_go_on(self) -> bool:
        if self._ended or self._next + 1 >= len(self._starts) or self._next <= self._reached:
            return True
        return self._starts[self._next + 1] <= self._starts[self._reached] + self._budget

    def reach(self, place: int) -> None:
        with self._change:
            if place > self._reached:
                self._reached = place
                self._change.notify_all()

    def wait_for_reader(self, place: int) -> bool:
        """Waits until the reader has come to this shard; False if it never will."""
        with self._change:
            self._change.wait_for(lambda: self._ended or self._reached >= place)
            return not self._ended

    def stop(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()


def _work(queue: _Queue, store: MirrorFolder, shards: Sequence[ShardEntry]) -> None:
    while (place := queue.take()) is not None:
        try:
            hold_shard(store, shards[place], None)
        except CacheFullError:
            if not queue.wait_for_reader(place):
                return
        except (ClewError, OSError):
            return
