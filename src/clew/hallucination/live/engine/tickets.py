"""What a caller holds of a request: its events as they come, and a way to cancel it."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from clew.base.errors import ClewError
from clew.hallucination.live.engine.requests import Finished, NewToken, Request

Token = TypeVar("Token")
Last = TypeVar("Last")
# A failed request ends with an error instead of `Finished`.
Event = NewToken | Finished | ClewError


class Events(Generic[Token, Last]):
    """The events of a request: its tokens, then one of type `last`, or an error. They are taken
    with `get` or by iterating, or they are given to a function (`on_event`)."""

    def __init__(self, last: type[Last]) -> None:
        self._last = last
        self._events: queue.SimpleQueue[Token | Last | ClewError] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._call: Callable[[Token | Last | ClewError], None] | None = None

    def get(self, timeout: float | None = None) -> Token | Last:
        """The next event. Raises TimeoutError, or the ClewError that ended the request."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no token within {timeout} seconds") from None
        if isinstance(event, ClewError):
            raise event
        return event

    def __iter__(self) -> Iterator[Token | Last]:
        """All events up to and including the last one."""
        while True:
            event = self.get()
            yield event
            if isinstance(event, self._last):
                return

    def on_event(self, call: Callable[[Token | Last | ClewError], None]) -> None:
        """Have `call` called with every event, those before included, from another thread: it must
        return quickly, and must not raise."""
        with self._lock:
            self._call = call
            while not self._events.empty():
                self._give(self._events.get())

    def put(self, event: Token | Last | ClewError) -> None:
        """Deliver an event; for whoever answers the request."""
        with self._lock:
            if self._call is None:
                self._events.put(event)
            else:
                self._give(event)

    def _give(self, event: Token | Last | ClewError) -> None:
        assert (call := self._call) is not None
        if isinstance(event, (self._last, ClewError)):
            self._call = None  # nothing follows: what it refers to need not wait for the ticket
        call(event)


class Ticket(Events[NewToken, Finished]):
    """A request that was submitted to the engine."""

    def __init__(self, request: Request, on_cancel: Callable[[], None]) -> None:
        super().__init__(Finished)
        self.request = request
        self._on_cancel = on_cancel
        self.is_canceled = False

    def cancel(self) -> None:
        """End the answer as soon as possible: `Finished` follows, with what there is of it."""
        self.is_canceled = True
        self._on_cancel()
