"""Fields that are read again and again, kept in memory as far as they fit."""

from collections.abc import Callable, Hashable

import numpy as np
import psutil

_SHARE = 0.25


class FieldMemory:
    """Whole fields, as they are stored, up to `limit_bytes` in all. [default: a quarter of the
    memory that is free] Half of what is free when a field is read stays free: other processes of
    the same comparison keep fields too.

    The first that fit stay: the trials of a comparison read the same fields in the same order, so
    that making room for later ones would keep none until it is read again.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._left = int(_SHARE * _free_bytes()) if limit_bytes is None else limit_bytes
        self._fields: dict[Hashable, np.ndarray] = {}

    def take(self, name: Hashable, size: int, read: Callable[[], np.ndarray]) -> np.ndarray | None:
        """The field, read at most once; None if its `size` in bytes does not fit."""
        if name not in self._fields:
            if size > min(self._left, _free_bytes() // 2):
                return None
            self._fields[name] = read()
            self._left -= size
        return self._fields[name]


def _free_bytes() -> int:
    return psutil.virtual_memory().available
