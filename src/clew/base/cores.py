"""The cores of this machine: how many this process may use, how many others hold, and work in
threads, a bounded number of items ahead of the consumer."""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import psutil

from clew.base.progress import Event
from clew.base.texts import counted

# Less than this much of a core, used by others, does not slow anything down.
_LITTLE = 0.5
# A shorter look is decided by a few clock ticks.
_LEAST_SECONDS = 1.0


def count_cores() -> int:
    """Cores that this process may run on."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class CoresBusy(Event):
    """Other processes use `others` of the machine's `cores`, so that this one's `threads` wait for
    each other."""

    others: float
    cores: int
    threads: int

    @property
    def free(self) -> int:
        """Threads for which there is a core."""
        return max(1, min(self.threads, round(self.cores - self.others)))

    @property
    def use(self) -> str:
        return f"other processes use {self.others:.1f} of {counted(self.cores, 'core')}"

    def __str__(self) -> str:
        return f"{self.use}: `threads={self.free}` may be faster than {self.threads}"


class Times(NamedTuple):
    """CPU time in seconds, of all processes and of this one, at a time of the clock."""

    clock: float
    machine: float
    own: float


class CoreWatch:
    """Says how many cores other processes have used since the last look."""

    def __init__(self, read: "Callable[[], Times] | None" = None) -> None:
        self._read = read or _read_times
        self._before = self._read()

    def wait(self) -> None:
        """Until there is something to see."""
        passed = self._read().clock - self._before.clock
        time.sleep(max(0.0, _LEAST_SECONDS - passed))

    def look(self) -> float | None:
        """None if the last look was just now: the next one covers both."""
        now = self._read()
        seconds = now.clock - self._before.clock
        if seconds < _LEAST_SECONDS:
            return None
        used = now.machine - self._before.machine - (now.own - self._before.own)
        self._before = now
        return max(0.0, used / seconds)


def find_shortage(others: float, threads: int) -> CoresBusy | None:
    """Whether what others use leaves too few cores for `threads`."""
    cores = os.cpu_count() or 1
    if threads < 2 or cores - others > threads - _LITTLE:
        return None
    return CoresBusy(others=min(others, cores), cores=cores, threads=threads)


def _read_times() -> Times:
    times = psutil.cpu_times()
    busy = (times.user, times.system, *(getattr(times, name, 0.0) for name in _BUSY))
    own = psutil.Process().cpu_times()
    return Times(clock=time.monotonic(), machine=sum(busy), own=own.user + own.system)


# Further kinds of time that some systems count: at low priority, in interrupts, taken by the host.
_BUSY = ("nice", "irq", "softirq", "steal")


Item = TypeVar("Item")
Done = TypeVar("Done")
_MOST_THREADS = 8
_AHEAD_PER_THREAD = 4


def map_ahead(
    work: Callable[[Item], Done], items: Iterable[Item], pool: Executor, *, ahead: int
) -> Generator[Done, None, None]:
    """Apply `work` to the items in threads and yield the results in order, at most `ahead` items
    ahead.

    An error is raised when its item's turn comes. Stopping early cancels what has not started.
    """
    waiting: deque[Future[Done]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def map_in_threads(
    work: Callable[[Item], Done],
    items: Iterable[Item],
    workers: int | None = None,
    *,
    ahead: int | None = None,
) -> Generator[Done, None, None]:
    """`map_ahead` in threads of its own, one per core when `workers` is None; they have ended when
    it ends."""
    workers = max(1, min(_MOST_THREADS, count_cores()) if workers is None else workers)
    with ThreadPoolExecutor(workers, thread_name_prefix="clew-map") as pool:
        yield from map_ahead(
            work, items, pool, ahead=_AHEAD_PER_THREAD * workers if ahead is None else ahead
        )
