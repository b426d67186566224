"""The guarded server that every page and API runs on.

A page's address holds a random token that other pages in the same browser cannot guess; an API has
an `Access` of its own. `guard` checks every request; here, how many connections there are and how
long each may take.
"""

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

from clew.base.errors import InputError
from clew.pages.guard import (
    HOST,
    LINGER_BYTES,
    Access,
    App,
    Ending,
    Guard,
    Limits,
    RefusedError,
    token_access,
)

if TYPE_CHECKING:
    from uvicorn import Config, Server

_TOKEN_BYTES = 24
_LAST_ANSWERS_SECONDS = 3
_KEEP_ALIVE_SECONDS = 5
_BACKLOG = 1024
_FULL = RefusedError(
    503,
    "too many connections are open: try again in a moment",
    headers=[(b"Retry-After", b"1")],
)
# One in so many connections is left to other addresses than the one that has most.
_SHARE_FOR_OTHERS = 8


def require_web() -> None:
    """Raise InputError if the packages for serving pages (the extra "web") are not installed."""
    # Not imported: that takes half a second, and other input may be wrong.
    missing = next((name for name in ("fastapi", "uvicorn") if find_spec(name) is None), None)
    if missing is not None:
        raise InputError(
            f"serving a page requires {missing}, which is not installed: install it with "
            f"pip install 'clew[web]'."
        )


class LocalServer:
    """A web server. `address` is the URL of the app; `run` returns after `stop`, after Ctrl-C, or,
    if there is an `ending`, once that is over."""

    def __init__(
        self,
        app: App,
        access: Access,
        listening: socket.socket,
        limits: Limits,
        *,
        path: str = "/",
        ending: Ending | None = None,
    ) -> None:
        import uvicorn

        host, port = listening.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
        self._socket, self._ending = listening, ending
        config = uvicorn.Config(
            Guard(app, access, limits),
            http=_limited_protocol(limits, access),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",  # a client that sends nonsense is no news
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=limits.head_bytes,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        )
        self._server = _lasting_server(config, ending) if ending else uvicorn.Server(config)

    def run(self) -> None:
        """Serve; without an `ending`, KeyboardInterrupt is raised once every request is answered.
        A second signal always raises it."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """May be called from any thread."""
        if self._ending is None:
            self._server.should_exit = True
        else:
            self._ending.begin()


@contextmanager
def open_server(
    build_app: Callable[[Callable[[], None]], App], port: int = 0, limits: Limits | None = None
) -> Iterator[LocalServer]:
    """Open a page's server on this machine, already listening; port 0 means any free port.
    `build_app` makes the app from a function that stops the server. Raises InputError when the port
    is taken or a package is missing."""
    require_web()
    token, most = secrets.token_urlsafe(_TOKEN_BYTES), limits or Limits()
    with listening(HOST, port) as opened:
        app = build_app(lambda: server.stop())
        server = LocalServer(app, token_access(token), opened, most, path=f"/{token}/")
        yield server


@contextmanager
def open_api(
    app: App, access: Access, *, host: str, port: int, limits: Limits, ending: Ending
) -> Iterator[LocalServer]:
    """Open an API's server, already listening at `host`; port 0 means any free port. Raises
    InputError when the address cannot be used or a package is missing."""
    require_web()
    with listening(host, port) as opened:
        yield LocalServer(app, access, opened, limits, ending=ending)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A request that comes before the server has started waits a moment."""
    if not 0 <= port <= 65535:
        raise InputError("choose one from 1024 to 65535.", setting="port", value=port)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InputError(
            'it is not an address of this machine. Give, for example, "127.0.0.1" or "0.0.0.0".',
            setting="host",
            value=host,
        ) from None
    with socket.socket(family, kind) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(place)
            opened.listen(_BACKLOG)
        except OSError as error:
            raise InputError(
                f"it cannot be used ({error.strerror}). Choose another, or use `port=0` for a free "
                f"one.",
                setting="port",
                value=port,
            ) from None
        yield opened


def _lasting_server(config: "Config", ending: Ending) -> "Server":
    """Goes on serving after the first signal until the app's `ending` is over; the second signal
    stops it as the first one usually does."""
    from uvicorn import Server

    class LastingServer(Server):
        is_ending = False

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.is_ending:
                super().handle_exit(sig, frame)
            self.is_ending = True
            ending.begin()

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or ending.is_over()

    return LastingServer(config)


def _limited_protocol(limits: Limits, access: Access) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which waits for ever, with the limits on time and connections. When
    there are too many, the slowest client that keeps the server waiting makes room."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

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
            access.on_refusal(_FULL)
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
            self.transport.write(_response(refusal, access))
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
                self.is_known = self.is_known or access.knows({**self.scope})
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


def _response(refusal: RefusedError, access: Access) -> bytes:
    kind, body = access.describe(refusal)
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
