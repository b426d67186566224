"""Real `clew` processes that start fast: forked from one with the libraries loaded."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import psutil

from clew.storage.writing import lock_file
from tests.forking import HANGS_SECONDS, fork

_BRIEF_LOCKS = (".manifest.lock", ".place.lock")


def _run_clew(arguments: list[str], output: Path, variables: dict[str, str]) -> None:
    """In the new process: what the command `clew` does, with its output in a file."""
    import torch

    from clew.cli import main

    os.environ.update(variables)
    torch.set_num_threads(1)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = ["clew", *arguments]
    main()


def _is_free(lock: Path) -> bool:
    try:
        with lock_file(lock, timeout_seconds=0):
            return True
    except filelock.Timeout:
        return False


class ClewProcess:
    """`clew ARGUMENTS` as a separate process, which ends with the `with` block. `variables` are
    added to its environment."""

    def __init__(self, arguments: list[str], output: Path, **variables: str) -> None:
        self._output = output
        self._process = fork(_run_clew, arguments, output, variables)

    def __enter__(self) -> "ClewProcess":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(self.pid, number)

    def halt(self, store: Path) -> None:
        """Stop it where it holds none of the locks that are held for a moment only."""
        one = psutil.Process(self.pid)
        while True:
            one.suspend()
            assert self.wait_until(lambda: one.status() == psutil.STATUS_STOPPED)
            if all(map(_is_free, (path for name in _BRIEF_LOCKS for path in store.rglob(name)))):
                return
            one.resume()
            time.sleep(0.01)

    def wait(self) -> int:
        """Wait until it has ended; returns the exit code, -9 after a kill."""
        self._process.join(HANGS_SECONDS)
        assert self._process.exitcode is not None, f"still running:\n{self.output}"
        return self._process.exitcode

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition holds; False if the process ended first."""
        deadline = time.monotonic() + HANGS_SECONDS
        while not condition():
            if not self._process.is_alive():
                return condition()
            assert time.monotonic() < deadline, f"waited in vain:\n{self.output}"
            time.sleep(0.001)
        return True
