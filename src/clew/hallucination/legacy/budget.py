"""How much memory one legacy file may take. Everything that is made from the file is counted before
it is made, so that a small file cannot exhaust the machine."""

from pathlib import Path

import psutil

from clew.base.errors import InputError
from clew.base.settings import read_size
from clew.base.texts import bytes_text
from clew.engine.planning.hardware import read_limits

# Real files take up to 5 times their size, compressed ones up to 20 times.
_TIMES_FILE_SIZE = 32
LEAST_BYTES = 256_000_000


class OverBudgetError(InputError):
    """A file takes more memory than it may."""


class Budget:
    """The bytes that are left for the data of one file."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.left = limit

    def take(self, count: int) -> None:
        """Count bytes that stay in memory; raises OverBudgetError."""
        self.left -= count
        if self.left < 0:
            raise self._explain()

    def check(self, count: int) -> None:
        """Refuse what does not fit now, without counting it."""
        if count > self.left:
            raise self._explain()

    def _explain(self) -> OverBudgetError:
        return OverBudgetError(
            f'"{self.path}" takes more than {bytes_text(self.limit)} of memory: it is damaged, or '
            "made to exhaust memory. If you trust its author, give a larger `max_memory`."
        )


def choose_limit(path: Path, max_memory: int | str | None) -> int:
    """The bytes that a file may take: `max_memory`, or in proportion to the file's size, but no
    more than is free. Raises InputError if `max_memory` is not a size."""
    if max_memory is not None:
        return read_size("max_memory", max_memory)
    free = psutil.virtual_memory().available
    group_free = read_limits().free_bytes
    if group_free is not None:
        free = min(free, group_free)
    return max(LEAST_BYTES, min(_TIMES_FILE_SIZE * path.stat().st_size, free))
