"""Caching in a child process, to be killed; it is forked from one that has everything loaded."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from clew.patterns.cache.build import cache_photos
from clew.patterns.photos import find_classes
from tests.forking import HANGS_SECONDS, fork


def _cache(root: Path, cache_dir: Path, size: int) -> None:
    cache_photos(find_classes(root), cache_dir, size, workers=2)


class CachingProcess:
    """Ends with the `with` block."""

    def __init__(self, root: Path, cache_dir: Path, size: int) -> None:
        self._process = fork(_cache, root, cache_dir, size)

    def __enter__(self) -> "CachingProcess":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()

    def kill_when(self, condition: Callable[[], bool]) -> bool:
        """Whether it was killed before it had ended."""
        deadline = time.monotonic() + HANGS_SECONDS
        while self._process.is_alive() and not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.001)
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(HANGS_SECONDS)
        return self._process.exitcode == -signal.SIGKILL
