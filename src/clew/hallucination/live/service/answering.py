"""The answers to one request while they are generated: from the engine's thread to the server's
loop."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clew.base.errors import ClewError
from clew.base.memory import is_out_of_memory
from clew.hallucination.live.answers import LiveAnswer, LiveToken
from clew.hallucination.live.service.errors import out_of_time
from clew.hallucination.llm.requests import Request
from clew.pages.api import ApiError, failed, out_of_memory

if TYPE_CHECKING:
    from clew.hallucination.live.session import Session

Event = LiveToken | LiveAnswer
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A request to the engine, and the text of its question, for detectors that compare answers."""

    request: Request
    question: str


class Answering:
    """Generates one answer per piece of work, all at the same time. Belongs to the loop it is made
    in; raises what the session raises if the work cannot be taken. Its tokens are delivered only
    if it `is_stream`: waking the loop for each takes time from the engine. `on_first_token` gets
    the seconds that the first token took."""

    def __init__(
        self,
        session: "Session",
        work: Sequence[Work],
        seconds: float,
        on_first_token: Callable[[float], None],
        *,
        is_stream: bool,
    ) -> None:
        self._loop, self._is_stream = asyncio.get_running_loop(), is_stream
        self._on_first_token: Callable[[float], None] | None = on_first_token
        self._events: asyncio.Queue[tuple[int, Event] | ApiError] = asyncio.Queue()
        self._started, self._seconds = self._loop.time(), seconds
        self._unfinished, self._is_open = len(work), True
        self._tickets = []
        try:
            for place, one in enumerate(work):
                ticket = session.submit(one.request, question=one.question)
                self._tickets.append(ticket)
                ticket.on_event(partial(self._put, place))
        except BaseException:
            self.cancel()
            raise

    async def events(self) -> AsyncGenerator[tuple[int, Event]]:
        """The number of the answer with each of its events; ends after the last answer. Raises
        ApiError, and cancels the rest, when the time is up or the server ends."""
        while self._unfinished:
            event = await self._next()
            if isinstance(event, ApiError):
                self.cancel()
                raise event
            if isinstance(event[1], LiveAnswer):
                self._unfinished -= 1
                if event[1].ended == "canceled":  # by the engine, which has failed or ended
                    self.cancel()
                    raise failed()
            yield event

    def end(self, error: ApiError) -> None:
        """End the answers early, with an error; called in the loop."""
        self._events.put_nowait(error)

    def cancel(self) -> bool:
        """Take the requests out of the batch; those that are finished stay so. Returns whether
        there was something left to cancel."""
        is_left, self._is_open = self._is_open and self._unfinished > 0, False
        for ticket in self._tickets if is_left else ():
            ticket.cancel()
        return is_left

    @property
    def has_more(self) -> bool:
        """Whether the next event is there already."""
        return not self._events.empty()

    async def _next(self) -> "tuple[int, Event] | ApiError":
        deadline = self._started + self._seconds
        if self._loop.time() >= deadline:
            return out_of_time(self._seconds)
        if self.has_more:
            return self._events.get_nowait()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._events.get()
        except TimeoutError:
            return out_of_time(self._seconds)

    def _put(self, place: int, event: Event | ClewError) -> None:
        """Called in the session's thread, perhaps after the loop has ended."""
        if isinstance(event, LiveToken):
            if self._on_first_token is not None:
                self._on_first_token(self._loop.time() - self._started)
                self._on_first_token = None
            if not self._is_stream:
                return
        told: tuple[int, Event] | ApiError
        if isinstance(event, ClewError):
            logger.error("a request has failed: %s", event)
            told = out_of_memory() if is_out_of_memory(event) else failed()
        else:
            told = place, event
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, told)


async def collect(answering: Answering, count: int) -> list[LiveAnswer]:
    """All answers, in the order of the work."""
    found: dict[int, LiveAnswer] = {}
    async for place, event in answering.events():
        if isinstance(event, LiveAnswer):
            found[place] = event
    return [found[place] for place in range(count)]
