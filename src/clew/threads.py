"""Work in threads, a bounded number of items ahead of the consumer."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

from clew.cores import count_cores

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
