"""Answers with their risk, and what a caller holds of a request while its answer comes."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clew.errors import ClewError
from clew.hallucination.detectors.risk import Risk
from clew.hallucination.live.engine.requests import Ended
from clew.hallucination.live.engine.tickets import Ticket


@dataclass(frozen=True, kw_only=True)
class LiveToken:
    """A token of an answer. `risk`: that it is hallucinated; None without a token probe."""

    id: int
    text: str
    logprob: float
    entropy: float
    top: tuple[tuple[int, float], ...] = ()
    risk: float | None = None


@dataclass(frozen=True, kw_only=True)
class LiveAnswer:
    """A whole answer with its risk. `tokens` are those of the text: tokens of a repetition that it
    was cut before may have come as events."""

    text: str
    tokens: tuple[LiveToken, ...]
    ended: Ended
    risk: Risk


LiveEvent = LiveToken | LiveAnswer | ClewError


class LiveTicket:
    """A submitted request, as `Ticket`: its tokens come with their risk, then the answer."""

    def __init__(self, ticket: Ticket) -> None:
        self.request = ticket.request
        self._tickets = [ticket]  # and those of answers drawn for it
        self._events: queue.SimpleQueue[LiveEvent] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._call: Callable[[LiveEvent], None] | None = None

    def get(self, timeout: float | None = None) -> LiveToken | LiveAnswer:
        """The next event. Raises TimeoutError, or the ClewError that ended the request."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no token within {timeout} seconds") from None
        if isinstance(event, ClewError):
            raise event
        return event

    def __iter__(self) -> Iterator[LiveToken | LiveAnswer]:
        """All events up to and including the answer."""
        while True:
            event = self.get()
            yield event
            if isinstance(event, LiveAnswer):
                return

    def answer(self) -> LiveAnswer:
        """Wait for the whole answer."""
        *_, last = self
        assert isinstance(last, LiveAnswer)
        return last

    def on_event(self, call: Callable[[LiveEvent], None]) -> None:
        """Have `call` called with every event, those before included, from another thread: it must
        return quickly, and must not raise."""
        with self._lock:
            self._call = call
            while not self._events.empty():
                call(self._events.get())

    def cancel(self) -> None:
        """End the answer as soon as possible: it follows, with what there is of it."""
        for ticket in self._tickets:
            ticket.cancel()

    def add_draw(self, ticket: Ticket) -> None:
        """An answer that is drawn for this one; for the delivery."""
        self._tickets.append(ticket)

    def put(self, event: LiveEvent) -> None:
        """Deliver an event; for the delivery."""
        with self._lock:
            if self._call is None:
                self._events.put(event)
            else:
                self._call(event)
