"""The guarded server that every page and API runs on.

A page's address holds a random token that other pages in the same browser cannot guess; an API has
a `Door` of its own. `guard` checks every request, `connections` how many there are and how long
they take.
"""

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clew.base.errors import InputError
from clew.pages.guard import HOST, App, Door, Ending, Guard, Limits, token_door

_TOKEN_BYTES = 24
_LAST_ANSWERS_SECONDS = 3
_KEEP_ALIVE_SECONDS = 5
_BACKLOG = 1024


def require_web() -> None:
    """Raise InputError if the packages for serving pages (the extra "web") are not installed."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"serving a page requires {error.name}, which is not installed: install it with "
            f"pip install 'clew[web]'."
        ) from None


class LocalServer:
    """A web server. `address` is the URL of the app; `run` returns after `stop`, after Ctrl-C, or,
    if there is an `ending`, once that is over."""

    def __init__(
        self,
        app: App,
        door: Door,
        listening: socket.socket,
        limits: Limits,
        *,
        path: str = "/",
        ending: Ending | None = None,
    ) -> None:
        import uvicorn

        from clew.pages.connections import LastingServer, limited_protocol

        host, port = listening.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
        self._socket, self._ending = listening, ending
        config = uvicorn.Config(
            Guard(app, door, limits),
            http=limited_protocol(limits, door),
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
        self._server = LastingServer(config, ending) if ending else uvicorn.Server(config)

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
    with _listening(HOST, port) as listening:
        app = build_app(lambda: server.stop())
        server = LocalServer(app, token_door(token), listening, most, path=f"/{token}/")
        yield server


@contextmanager
def open_api(
    app: App, door: Door, *, host: str, port: int, limits: Limits, ending: Ending
) -> Iterator[LocalServer]:
    """Open an API's server, already listening at `host`; port 0 means any free port. Raises
    InputError when the address cannot be used or a package is missing."""
    require_web()
    with _listening(host, port) as listening:
        yield LocalServer(app, door, listening, limits, ending=ending)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
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
    with socket.socket(family, kind) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
            listening.listen(_BACKLOG)
        except OSError as error:
            raise InputError(
                f"it cannot be used ({error.strerror}). Choose another, or use `port=0` for a free "
                f"one.",
                setting="port",
                value=port,
            ) from None
        yield listening
