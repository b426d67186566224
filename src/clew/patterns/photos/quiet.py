"""Pillow's warnings are not shown while photos are read: what matters becomes a PhotoError.
`warnings.catch_warnings` would lose other people's filters when threads come and go."""

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

_LOCK = threading.Lock()
_FROM_PILLOW = ("ignore", None, Warning, re.compile(r"PIL(\.|$)"), 0)
_readers = 0


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings from Pillow while at least one thread is inside."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _readers
    with _LOCK:
        _readers += change
        # Looked up each time: others may have replaced the list meanwhile.
        filters = cast(list[Any], warnings.filters)
        if _readers and _FROM_PILLOW not in filters:
            filters.insert(0, _FROM_PILLOW)
        if not _readers and _FROM_PILLOW in filters:
            filters.remove(_FROM_PILLOW)
