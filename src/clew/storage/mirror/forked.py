"""Reading from URLs in a forked process, such as a worker of PyTorch's DataLoader. Its parent's
connections do not survive the fork, and new ones cannot be made: another process reads for it."""

import os
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from clew.base.errors import ClewError
from clew.base.python_processes import start_function
from clew.storage.places import Entry, Place, Range, open_place

_is_forked = False
_THREADS = 16


def _forget() -> None:
    """What was opened before the fork cannot be used after it."""
    global _is_forked  # noqa: PLW0603 - the state of this process
    # Without obstore nothing was opened.
    _is_forked = _is_forked or "obstore" in sys.modules
    open_reading.cache_clear()
    _helper.cache_clear()


@cache
def open_reading(url: str) -> Place:
    """The place at a URL, for reading, opened once per process."""
    return HelpedPlace(url) if _is_forked else open_place(url)  # type: ignore[return-value]


class HelpedPlace:
    """The part of a `Place` that reads, done by another process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def child(self, name: str) -> "HelpedPlace":
        return HelpedPlace(f"{self.url}/{name}")

    def folders(self) -> list[str]:
        return self._call("folders")

    def entries(self) -> dict[str, Entry]:
        return self._call("entries")

    def read(self, name: str, max_bytes: int) -> Any:
        return self._call("read", name, max_bytes)

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        return [memoryview(piece) for piece in self._call("read_ranges", name, ranges)]

    def _call(self, method: str, *arguments: Any) -> Any:
        return _helper().call(self.url, method, *arguments)


class _Helper:
    """The other process, which answers any number of calls at the same time. It ends with this
    one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = theirs.fileno()
            self._process = start_function(serve, number, pass_fds=[number])
            self._pipe: Connection = Connection(os.dup(ours.fileno()))
        self._numbers, self._lock = count(), threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        threading.Thread(target=self._receive, daemon=True).start()

    def call(self, *request: Any) -> Any:
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._pipe.send((number, *request))
        return future.result()

    def _receive(self) -> None:
        while True:
            try:
                number, answer = self._pipe.recv()
            except (EOFError, OSError):
                break
            future = self._waiting.pop(number)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        while self._waiting:
            _, future = self._waiting.popitem()
            future.set_exception(OSError("the process that reads from URLs has ended"))


@cache
def _helper() -> _Helper:
    return _Helper()


os.register_at_fork(after_in_child=_forget)


def serve(descriptor: int) -> None:
    """What the other process does: answers the calls that come through this socket."""
    pipe, lock = Connection(descriptor), threading.Lock()

    def answer(number: int, url: str, method: str, *arguments: Any) -> None:
        try:
            found = getattr(open_reading(url), method)(*arguments)
            found = [bytes(one) for one in found] if method == "read_ranges" else found
        except (ClewError, OSError, EOFError, ValueError) as error:  # raised where it was asked
            found = error
        with lock:
            pipe.send((number, found))

    with ThreadPoolExecutor(_THREADS) as threads:
        while True:
            try:
                request = pipe.recv()
            except EOFError:
                return
            threads.submit(answer, *request)
