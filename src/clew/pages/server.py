"""The guarded local server that every page and API runs on: this machine alone can reach it.

The address holds a random token that other pages in the same browser cannot guess. Requests with
another Host header are refused, which prevents DNS rebinding.
"""

import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from clew.errors import InputError

# As in ASGI: https://asgi.readthedocs.io
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOST = "127.0.0.1"
_OWN_NAMES = {HOST, "localhost"}
_TOKEN_BYTES = 24
_LAST_ANSWERS_SECONDS = 3
_MOST_DISCARDED_BYTES = 1 << 20
_HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}


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

    def __init__(self, build_app: Callable[[Callable[[], None]], App], listening: socket.socket):
        import uvicorn

        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
        self._socket = listening
        config = uvicorn.Config(
            Guard(build_app(self.stop), token),
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
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
    build_app: Callable[[Callable[[], None]], App], port: int = 0
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
        yield LocalServer(build_app, listening)


class Guard:
    """Keeps other web pages out: only requests for this machine's own name, from the page itself,
    below the token. Tells the browser to load nothing else."""

    def __init__(self, app: App, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _guard_headers(message.get("headers", ()))
            await send(message)

        token = scope["path"].removeprefix("/").partition("/")[0]
        wrong = _what_is_wrong(scope["headers"])
        if wrong is not None:
            await _refuse(receive, send_guarded, 403, wrong)
        elif not secrets.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            await _refuse(receive, send_guarded, 404, "not found")
        else:
            await self._app({**scope, "root_path": f"/{token}"}, receive, send_guarded)


async def _refuse(receive: Receive, send: Send, status: int, reason: str) -> None:
    await _discard_body(receive)
    body = reason.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _discard_body(receive: Receive) -> None:
    """Read the request's body, up to a limit: a connection that is closed with unread bytes is
    reset, and the client may never see the reason."""
    left = _MOST_DISCARDED_BYTES
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
        left -= len(message.get("body", b""))


def _guard_headers(given: Any) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in given if name.lower() not in _HEADERS]
    if not any(name.lower() == b"cache-control" for name, _ in kept):
        kept.append((b"cache-control", b"no-store"))
    return [*kept, *_HEADERS.items()]


def _what_is_wrong(headers: Any) -> str | None:
    """Why a request is refused, None if it is not. A forwarded port may have another number, so
    only the name in the Host header is checked."""
    host, origin = _find(headers, b"host") or "", _find(headers, b"origin")
    if _name(f"//{host}") not in _OWN_NAMES:
        return "open this page at the address that clew printed"
    if origin is not None and origin.partition("://")[2] != host:
        return "only clew's own page may send answers"
    return None


def _find(headers: Any, wanted: bytes) -> str | None:
    found = (value for name, value in headers if name.lower() == wanted)
    value: bytes | None = next(found, None)
    return None if value is None else value.decode("latin-1")


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
