"""Work in threads, a bounded number of items ahead of the one who asks."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")


def map_ahead(
    work: Callable[[Item], Done], items: Iterable[Item], pool: Executor, *, ahead: int
) -> Generator[Done, None, None]:
    """What `work` makes of the items, in their order, with at most `ahead` of them waiting.

    An error of one comes out in its place. Whoever stops early cancels what was not begun.
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
