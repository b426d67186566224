"""The server's connections: how many there are, and how long each may keep it waiting. Imports
uvicorn, which is optional."""

import asyncio
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clew.pages.guard import Door, Ending, Limits, RefusedError

_FULL = RefusedError(503, "too many connections are open: try again in a moment")


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
    """uvicorn's HTTP protocol, which waits for ever, with the limits on time and connections."""
    kind, body = door.describe(_FULL)
    full = b"\r\n".join(
        (
            b"HTTP/1.1 503 Service Unavailable",
            b"Content-Type: %b" % kind,
            b"Content-Length: %d" % len(body),
            b"Retry-After: 1",
            b"Connection: close",
            b"",
            body,
        )
    )

    class LimitedProtocol(H11Protocol):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self._timers: dict[str, asyncio.TimerHandle] = {}

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                door.on_refusal(_FULL)
                transport.write(full)
                transport.close()
                return
            self._end_after("head", limits.head_seconds)

        def data_received(self, data: bytes) -> None:
            before = self.scope
            super().data_received(data)
            if self.scope is not before:
                self._keep("head")

        def on_response_complete(self) -> None:
            before = self.scope
            super().on_response_complete()
            if self.scope is before:  # otherwise the next request had already arrived
                self._end_after("head", limits.head_seconds)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._end_after("write", limits.write_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._keep("write")

        def connection_lost(self, exc: Exception | None) -> None:
            for name in list(self._timers):
                self._keep(name)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            if self.cycle is not None and self.cycle.more_body:
                self.transport.abort()  # its request will not be answered any more

        def _end_after(self, name: str, seconds: float) -> None:
            self._keep(name)
            self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

        def _keep(self, name: str) -> None:
            if name in self._timers:
                self._timers.pop(name).cancel()

    return LimitedProtocol
