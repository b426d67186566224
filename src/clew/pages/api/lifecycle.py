"""From the first request to the last: loading, ready, draining."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from clew.pages.api.errors import loading, shutting_down

if TYPE_CHECKING:
    from clew.pages.api.errors import ApiError

Phase = Literal["loading", "ready", "draining"]
# After the time to drain: for the last words of every stream.
_LAST_WORDS_SECONDS = 2.0


class RunningWork(Protocol):
    """What the end of the server cuts short."""

    def end(self, error: "ApiError") -> None: ...


class Lifecycle:
    """The state of the server, and its end: after `begin`, no new request is answered, those that
    run get `drain_seconds`, and those that still run then are ended with an error."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._deadline: float | None = None
        self._is_ready = False
        self._active = 0
        self._running: set[RunningWork] = set()

    @property
    def phase(self) -> Phase:
        if self._deadline is not None:
            return "draining"
        return "ready" if self._is_ready else "loading"

    @property
    def active(self) -> int:
        """Requests that are being answered."""
        return self._active

    def become_ready(self) -> None:
        self._is_ready = True

    def check(self) -> None:
        """Raises ApiError unless new work is accepted."""
        if self.phase == "draining":
            raise shutting_down()
        if self.phase == "loading":
            raise loading()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @contextmanager
    def running(self, work: RunningWork) -> Iterator[None]:
        """While something is at work that the end of the server cuts short."""
        self._running.add(work)
        try:
            yield
        finally:
            self._running.discard(work)

    def begin(self) -> None:
        """Begin to end; may be called from a signal handler."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._drain_seconds

    def is_over(self) -> bool:
        """Called by the server's own loop: also ends what has run out of time."""
        if self._deadline is None:
            return False
        late = time.monotonic() - self._deadline
        if late >= 0:
            for work in self._running:
                work.end(shutting_down())
        return self._active == 0 or late > _LAST_WORDS_SECONDS
