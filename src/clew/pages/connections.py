"""The server's connections: how many there are, and how long each may keep it waiting. Imports
uvicorn, which is optional."""

import asyncio
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.pages.guard import LINGER_BYTES, Door, Ending, Limits, RefusedError

_FULL = RefusedError(
    503,
    "too many connections are open: try again in a moment",
    headers=[(b"Retry-After", b"1")],
)
# One in so many connections is left to other addresses than the one that has most.
_SHARE_FOR_OTHERS = 8


class LastingServer(uvicorn.Server):
    """Goes on serving after the first signal until the app's `ending` is over; the second signal
    stops it as the first one usually does."""

    def __init__(self, config: uvicorn.Config, ending: Ending) -> None:
        super().__init__(config)
        self._ending = ending
        self._is_ending = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_ending:
            super().handle_exit(sig, frame)
        self._is_ending = True
        self._ending.begin()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._ending.is_over()


def limited_protocol(limits: Limits, door: Door) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which waits for ever, with the limits on time and connections. When
    there are too many, the slowest client that keeps the server waiting makes room."""

    class LimitedProtocol(H11Protocol):
        connections: "set[LimitedProtocol]"  # type: ignore[assignment]

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._timers: dict[str, asyncio.TimerHandle] = {}
            # Since when the server waits for the client: to send a whole request, or to read.
            self.waiting_since: float | None = None
            self.is_known = self.is_turned_away = False
            self._drained = 0

        @property
        def address(self) -> str:
            return self.client[0] if self.client else ""

        @property
        def may_be_evicted(self) -> bool:
            """Clients with a key keep their place for as long as a head may take."""
            if self.waiting_since is None or self.is_turned_away or self.transport.is_closing():
                return False
            is_idle = self.cycle is None or self.cycle.response_complete
            waited = self.loop.time() - self.waiting_since
            return is_idle or not self.is_known or waited > limits.head_seconds

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_head()
            # After what clients have sent already is read: it may hold a key.
            self.loop.call_soon(self.loop.call_soon, self._keep_to_limits)

        def _keep_to_limits(self) -> None:
            if self.is_turned_away or self.transport.is_closing():
                return
            places = [one for one in self.connections if not one.is_turned_away]
            own = [one for one in places if one.address == self.address]
            if len(own) > limits.connections - limits.connections // _SHARE_FOR_OTHERS:
                self._make_room(own)
            elif len(places) > limits.connections:
                self._make_room(places)

        def _make_room(self, places: "list[LimitedProtocol]") -> None:
            """Of strangers before clients with a key, of the address with the most connections,
            the one that has kept the server waiting for longest; this one if none does."""
            held = Counter(one.address for one in places)
            slowest = min(
                (one for one in places if one is not self and one.may_be_evicted),
                key=lambda one: (one.is_known, -held[one.address], one.waiting_since),
                default=self,
            )
            door.on_refusal(_FULL)
            slowest.turn_away(_FULL)

        def turn_away(self, refusal: RefusedError) -> None:
            """Answer, and read on for a moment: a connection that is closed with unread bytes is
            reset, and its client may never see the reason."""
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering and self.cycle.response_started:
                self.transport.abort()
                return
            if is_answering:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            leaving = [one for one in self.connections if one.is_turned_away]
            if len(leaving) >= limits.connections:
                min(leaving, key=lambda one: one.waiting_since or 0).transport.abort()
            self.is_turned_away, self.waiting_since = True, self.loop.time()
            for name in list(self._timers):
                self._keep(name)
            self._unset_keepalive_if_required()
            self.transport.write(_response(refusal, door))
            with suppress(OSError):  # the client has left meanwhile
                self.transport.write_eof()
            self.flow.resume_reading()
            self._end_after("linger", limits.linger_seconds)

        def send_400_response(self, msg: str) -> None:
            self.turn_away(RefusedError(400, f"{msg[:1].lower()}{msg[1:].rstrip('.')}"))

        def data_received(self, data: bytes) -> None:
            if self.is_turned_away:
                self._drained += len(data)
                if self._drained > LINGER_BYTES:
                    self.transport.abort()
                return
            before = self.scope
            super().data_received(data)
            if self.scope is not before:
                self._keep("head")
                self.is_known = self.is_known or door.knows({**self.scope})
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait_for_body()

        def on_response_complete(self) -> None:
            before = self.scope
            super().on_response_complete()
            if self.scope is before:
                self._wait_for_head()
            else:  # the next request had already arrived
                self._wait_for_body()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.waiting_since = self.loop.time()
            self._end_after("write", limits.write_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.waiting_since = None
            self._keep("write")

        def connection_lost(self, exc: Exception | None) -> None:
            for name in list(self._timers):
                self._keep(name)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            if self.cycle is not None and self.cycle.more_body:
                self.transport.abort()  # its request will not be answered any more

        def _wait_for_head(self) -> None:
            self.waiting_since = self.loop.time()
            self._end_after("head", limits.head_seconds)

        def _wait_for_body(self) -> None:
            is_whole = not self.cycle.more_body
            self.waiting_since = None if is_whole else self.waiting_since or self.loop.time()

        def _end_after(self, name: str, seconds: float) -> None:
            self._keep(name)
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

        def _keep(self, name: str) -> None:
            if name in self._timers:
                self._timers.pop(name).cancel()

    return LimitedProtocol


def _response(refusal: RefusedError, door: Door) -> bytes:
    kind, body = door.describe(refusal)
    status = HTTPStatus(refusal.status)
    return b"\r\n".join(
        (
            f"HTTP/1.1 {status.value} {status.phrase}".encode(),
            b"Content-Type: %b" % kind,
            b"Content-Length: %d" % len(body),
            *(b"%b: %b" % header for header in refusal.headers),
            b"Connection: close",
            b"",
            body,
        )
    )
