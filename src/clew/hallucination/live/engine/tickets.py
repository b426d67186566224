"""What a caller holds of a request: its events as they come, and a way to cancel it."""

import queue
import threading
from collections.abc import Callable, Iterator

from clew.errors import ClewError
from clew.hallucination.live.engine.requests import Finished, NewToken, Request

# A failed request ends with an error instead of `Finished`.
Event = NewToken | Finished | ClewError


class Ticket:
    """A submitted request. Its events are taken with `get` or by iterating, or they are given to a
    function (`on_event`)."""

    def __init__(self, request: Request, on_cancel: Callable[[], None]) -> None:
        self.request = request
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._call: Callable[[Event], None] | None = None
        self._on_cancel = on_cancel
        self.is_canceled = False

    def get(self, timeout: float | None = None) -> NewToken | Finished:
        """The next event. Raises TimeoutError, or the ClewError that ended the request."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no token within {timeout} seconds") from None
        if isinstance(event, ClewError):
            raise event
        return event

    def __iter__(self) -> Iterator[NewToken | Finished]:
        """All events up to and including `Finished`."""
        while True:
            event = self.get()
            yield event
            if isinstance(event, Finished):
                return

    def on_event(self, call: Callable[[Event], None]) -> None:
        """Have `call` called with every event, those before included, from the engine's thread: it
        must return quickly, and must not raise."""
        with self._lock:
            self._call = call
            while not self._events.empty():
                call(self._events.get())

    def cancel(self) -> None:
        """End the answer as soon as possible: `Finished` follows, with what there is of it."""
        self.is_canceled = True
        self._on_cancel()

    def put(self, event: Event) -> None:
        """Deliver an event; for the engine."""
        with self._lock:
            if self._call is None:
                self._events.put(event)
            else:
                self._call(event)
