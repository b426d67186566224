"""Work on files in threads, ahead of the one who asks: decoding and the disk wait side by side."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")
_AHEAD = 4  # items in hand a thread


def map_ahead(
    work: Callable[[Item], Done], items: Iterable[Item], workers: int | None = None
) -> Generator[Done, None, None]:
    """What `work` makes of the items, in their order; only few are in hand at a time."""
    workers = workers or max(1, min(8, os.cpu_count() or 1))
    waiting: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
