"""The guarded local server that every page and API runs on: this machine alone can reach it.

The address holds a random token that other pages in the same browser cannot guess. `guard` checks
every request, `connections` how many there are and how long they take.
"""

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clew.errors import InputError
from clew.pages.guard import HOST, App, Guard, Limits

_TOKEN_BYTES = 24
_LAST_ANSWERS_SECONDS = 3
_KEEP_ALIVE_SECONDS = 5


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
    """A local web server. `address` is the URL of the app; `run` returns after `stop` or Ctrl-C."""

    def __init__(
        self,
        build_app: Callable[[Callable[[], None]], App],
        listening: socket.socket,
        limits: Limits,
    ) -> None:
        import uvicorn

        from clew.pages.connections import limited_protocol

        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
        self._socket = listening
        config = uvicorn.Config(
            Guard(build_app(self.stop), token, limits),
            http=limited_protocol(limits),
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
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve; KeyboardInterrupt is raised once every request is answered."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """May be called from any thread."""
        self._server.should_exit = True


@contextmanager
def open_server(
    build_app: Callable[[Callable[[], None]], App], port: int = 0, limits: Limits | None = None
) -> Iterator[LocalServer]:
    """Open a server that is already listening; port 0 means any free port. `build_app` makes the
    app from a function that stops the server. Raises InputError when the port is taken or a package
    is missing."""
    require_web()
    if not 0 <= port <= 65535:
        raise InputError("choose one from 1024 to 65535.", setting="port", value=port)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # a request that comes before the server has started waits a moment
        except OSError as error:
            raise InputError(
                f"it cannot be used ({error.strerror}). Choose another, or omit `port` for a free "
                f"one.",
                setting="port",
                value=port,
            ) from None
        yield LocalServer(build_app, listening, limits or Limits())
