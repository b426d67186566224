"""What every request passes before an app sees it: who may enter, the names in its headers, limits
on size and time, and valid JSON. Pure ASGI, so that it carries pages and streaming APIs alike."""

import asyncio
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from clew.base.texts import bytes_text
from clew.storage.reading import parse_json

# As in ASGI: https://asgi.readthedocs.io
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

HOST = "127.0.0.1"
_OWN_NAMES = {HOST, "localhost"}
LINGER_BYTES = 1 << 24
# A proxy in front may take the one for the end of the body, and this server the other.
_LENGTHS = (b"content-length", b"transfer-encoding")
_POLICY = b"content-security-policy"
_RESPONSE_HEADERS = {
    _POLICY: b"default-src 'none'; script-src 'self'; style-src 'self'; "
    b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may take: bytes and seconds per request, and connections at a time. The
    head is a request's first line and its headers; `write_seconds` is how long a client may read
    nothing of a response that waits for it, `linger_seconds` how long a refused request is read, so
    that its client sees the reason."""

    body_bytes: int = 1_000_000
    head_bytes: int = 16_000
    headers: int = 64
    head_seconds: float = 5.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    linger_seconds: float = 2.0
    connections: int = 64


class Ending(Protocol):
    """How an app ends: after the first signal, the server goes on until it `is_over`."""

    def begin(self) -> None:
        """May be called from any thread, and more than once."""

    def is_over(self) -> bool:
        """Called by the server's own loop, several times per second."""


class RefusedError(Exception):
    """A request that the app never sees. `is_read`: its whole body has arrived."""

    def __init__(
        self,
        status: int,
        reason: str,
        *,
        is_read: bool = False,
        headers: Headers = (),
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.is_read = status, reason, is_read
        self.headers = tuple(headers)


Describe = Callable[[RefusedError], tuple[bytes, bytes]]


def describe_plainly(refusal: RefusedError) -> tuple[bytes, bytes]:
    return b"text/plain; charset=utf-8", refusal.reason.encode()


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may enter. `admit` gets the head of a request, raises RefusedError for a stranger, and
    returns the path below which the app lives. `knows` tells whether the head holds a secret of
    this server: such clients are the last to make room. `is_own_name` tells whether a name in the
    Host header is this server's. `describe` turns a refusal into a content type and a body;
    `on_refusal` is called with each."""

    admit: Callable[[Scope], str]
    knows: Callable[[Scope], bool] = lambda _: False
    is_own_name: Callable[[str], bool] = _OWN_NAMES.__contains__
    describe: Describe = describe_plainly
    on_refusal: Callable[[RefusedError], None] = lambda _: None


def token_access(token: str) -> Access:
    """For a page of this machine's own user: the path begins with a token that others cannot
    guess."""

    def knows(scope: Scope) -> bool:
        given: str = scope["path"].removeprefix("/").partition("/")[0]
        return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())

    def admit(scope: Scope) -> str:
        if not knows(scope):
            raise RefusedError(404, "not found")
        return f"/{token}"

    return Access(admit=admit, knows=knows)


def named_hosts(names: Iterable[str]) -> Callable[[str], bool]:
    """Whether a Host is this machine, one of `names`, or an IP address: no foreign page can make a
    browser send an address, which resolves to nothing else, as it can a name of its own."""
    known = _OWN_NAMES | {name.lower() for name in names}

    def is_own(name: str) -> bool:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in known
        return True

    return is_own


class Guard:
    """Passes on requests that may enter, for the server's own name, from the page itself,
    whose body is within the limits and complete. Everything else is answered here. Tells the
    browser to load nothing else."""

    def __init__(self, app: App, access: Access, limits: Limits) -> None:
        self._app, self._access, self._limits = app, access, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _guard_headers(message.get("headers", ()))
            await send(message)

        try:
            root = self._check_head(scope)
            body = await self._read_body(scope["headers"], receive)
        except RefusedError as refusal:
            await self._refuse(refusal, receive, send_guarded)
            return
        if body is not None:
            whole = _receive_again(body, receive)
            await self._app({**scope, "root_path": root}, whole, send_guarded)

    def _check_head(self, scope: Scope) -> str:
        """The path of the app; nothing of the body is read before."""
        if all(find_header(scope["headers"], name) for name in _LENGTHS):
            raise RefusedError(400, "give Content-Length or Transfer-Encoding, not both")
        root = self._access.admit(scope)
        headers, most = scope["headers"], self._limits
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in headers)
        if len(headers) > most.headers or size > most.head_bytes:
            raise RefusedError(431, "the headers of the request are too large")
        _check_names(headers, self._access.is_own_name)
        return root

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, valid JSON if it claims to be; None if the client has gone."""
        self._check_size(_declared_bytes(headers))
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    self._check_size(len(body))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            within = f"{self._limits.body_seconds:g} s"
            raise RefusedError(408, f"the request did not arrive within {within}") from None
        if body and _is_json(headers):
            _check_json(bytes(body))
        return bytes(body)

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            most = bytes_text(self._limits.body_bytes)
            raise RefusedError(413, f"the request is larger than {most}")

    async def _refuse(self, refusal: RefusedError, receive: Receive, send: Send) -> None:
        """Answers at once, and closes the connection after reading on for a moment: one that is
        closed with unread bytes is reset, and its client may never see the reason."""
        self._access.on_refusal(refusal)
        kind, body = self._access.describe(refusal)
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *refusal.headers,
        ]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if not refusal.is_read:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_seconds):
                    await _discard_body(receive)
        await send({"type": "http.response.body", "body": b""})


async def _discard_body(receive: Receive) -> None:
    left = LINGER_BYTES
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
        left -= len(message.get("body", b""))


def _receive_again(body: bytes, receive: Receive) -> Receive:
    """The body in one message; after it, whether the client is still there."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_whole() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_whole


def _guard_headers(given: Headers) -> list[tuple[bytes, bytes]]:
    """The app's headers and the guard's. A policy of the app replaces the guard's only if it is a
    sandbox: a page that can reach nothing of this server."""
    kept = [(name.lower(), value) for name, value in given]
    kept = [
        (name, value)
        for name, value in kept
        if name not in _RESPONSE_HEADERS or (name == _POLICY and value.startswith(b"sandbox"))
    ]
    named = {name for name, _ in kept}
    if b"cache-control" not in named:
        kept.append((b"cache-control", b"no-store"))
    return [*kept, *(pair for pair in _RESPONSE_HEADERS.items() if pair[0] not in named)]


def _check_names(headers: Headers, is_own_name: Callable[[str], bool]) -> None:
    """A forwarded port may have another number, so only the name in the Host header is checked."""
    hosts = find_header(headers, b"host")
    if len(hosts) != 1 or not is_own_name(_name(f"//{hosts[0]}") or ""):
        raise RefusedError(403, "use the address that clew printed: the Host header is another")
    if any(origin.partition("://")[2] != hosts[0] for origin in find_header(headers, b"origin")):
        raise RefusedError(403, "only clew's own page may send requests: the Origin is another")


def _declared_bytes(headers: Headers) -> int:
    """The largest Content-Length; the server has checked that it is a number."""
    return max((int(size) for size in find_header(headers, b"content-length")), default=0)


def _is_json(headers: Headers) -> bool:
    """As FastAPI decides it: a body without a type is JSON."""
    kind = next(iter(find_header(headers, b"content-type")), "application/json")
    subtype = kind.partition(";")[0].partition("/")[2].strip().lower()
    return subtype == "json" or subtype.endswith("+json")


def _check_json(body: bytes) -> None:
    try:
        json.dumps(parse_json(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        reason = "the request contains a character that is not valid"
    except ValueError as error:
        reason = f"the request is not valid JSON: {error}"
    else:
        return
    raise RefusedError(400, reason, is_read=True)


def find_header(headers: Headers, wanted: bytes) -> list[str]:
    """The values of a header, whose name is in lower case."""
    return [value.decode("latin-1") for name, value in headers if name.lower() == wanted]


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
