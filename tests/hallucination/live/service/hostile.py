"""Hostile clients of the service, over real sockets. Each checks what it gets back."""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# Stands in every text that is sent: it must appear in no output of the server.
SECRET = "xyzzy-plugh"
_TIMEOUT_SECONDS = 60
_CHAT = "v1/chat/completions"
_MARKUP = f"<script>alert(1)</script><img src=x onerror=alert(1)> {SECRET}"
_CONTROL = f"\x1b[2J\x07\x00\u202e\u2028 {SECRET}"
_BROKEN_BODIES = (
    *(b"", b"{", b"null", b"[]", b"7", b'"a"', b"\xff\xfe\x00", b'{"messages": NaN}', b"{}"),
    *(b"[" * 50_000, b'{"a":' * 5_000, b'{"messages": ' + b"[" * 400 + b"]" * 400 + b"}"),
    *(rb'{"messages": [{"role": "user", "content": "\ud800"}]}', b'{"messages": 1e999}'),
    *(b'{"messages": [{"role": "user", "content": 5}]}', b'{"messages": [null]}'),
    *(b'{"prompt": [-1]}', b'{"messages": [], "max_tokens": ' + b"9" * 5000 + b"}"),
)
_PATHS = (
    *("/../../../../etc/passwd", "/page/../../../../etc/passwd", "//etc/passwd", "/etc/passwd"),
    *("/page/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/page/..%2f..%2f..%2fetc%2fpasswd"),
    *("/v1/models/../../../etc/passwd", "/page//etc/passwd", "/page/%00", "/page/....//x"),
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server, and the model that it names."""

    address: str
    model: str
    key: str | None = None

    def connect(self) -> socket.socket:
        parts = urlsplit(self.address)
        place = (str(parts.hostname), int(parts.port or 0))
        return socket.create_connection(place, timeout=_TIMEOUT_SECONDS)

    def head(
        self, method: str, path: str, *more: str, key: str | None = "", size: int = 0
    ) -> bytes:
        """The head of a request; without a `key`, with the right one."""
        key = self.key if key == "" else key
        lines = [f"{method} {path} HTTP/1.1", *more]
        if not any(one.startswith("Host:") for one in more):
            lines.append("Host: 127.0.0.1")
        lines += [f"Authorization: Bearer {key}"] if key else []
        lines += [f"Content-Length: {size}"] if size else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def post(self, body: Any, *more: str, path: str = _CHAT, **options: Any) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        about = (*more, "Content-Type: application/json", "Connection: close")
        return self.send(self.head("POST", f"/{path}", *about, size=len(raw), **options) + raw)

    def send(self, raw: bytes) -> tuple[int, bytes]:
        with self.connect() as client:
            client.sendall(raw)
            return _split(read_all(client))

    def body(self, content: str, **more: Any) -> dict[str, Any]:
        message = {"role": "user", "content": content}
        return {"model": self.model, "messages": [message], "max_tokens": 4, **more}

    def open_stream(self, content: str, max_tokens: int) -> socket.socket:
        """A connection whose first token has come."""
        asked = self.body(content, max_tokens=max_tokens, stream=True)
        raw = json.dumps(
            {**asked, "messages": [{"role": "system", "content": "a"}, *asked["messages"]]}
        )
        client = self.connect()
        about = ("Content-Type: application/json", "Connection: close")
        client.sendall(self.head("POST", f"/{_CHAT}", *about, size=len(raw)) + raw.encode())
        begin = client.recv(1 << 12)
        while b"data: " not in begin:
            part = client.recv(1 << 12)
            assert part, begin
            begin += part
        return client


def read_all(client: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def _split(reply: bytes) -> tuple[int, bytes]:
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def assert_refused(reply: tuple[int, bytes], *statuses: int) -> None:
    """An error in OpenAI's shape, in few words."""
    status, body = reply
    assert status in statuses, reply
    error = json.loads(body)["error"]
    assert {"message", "type", "param", "code"} == error.keys() and error["message"], error
    assert len(body) < 2000 and b"Traceback" not in body


def assert_alive(target: Target) -> None:
    """An honest client is answered."""
    status, body = target.post(target.body(f"Who? {SECRET}"))
    assert status == 200, body
    assert json.loads(body)["clew"]["state"]


def malformed(target: Target) -> None:
    for path in (_CHAT, "v1/completions", "score"):
        for body in _BROKEN_BODIES:
            if (path, body) != ("score", b"[]"):  # nothing to score
                assert_refused(target.post(body, path=path), 400, 413, 422)


_NEWER = ("tools", "tool_choice", "response_format")


def unusual_fields(target: Target) -> None:
    deep = json.loads("[" * 30 + "]" * 30)
    for field in ("messages", "temperature", "n", "stop", "seed", *_NEWER, "stream", SECRET):
        for value in (deep, {"a": deep}, "x" * 10_000, -1, 10**30, 1e308, [[]], True):
            status, body = target.post({**target.body("a"), field: value})
            assert status in (200, 400, 404, 413, 422), (field, value, body)
    assert_refused(target.post(target.body("a", n=10_000)), 400, 422)
    assert_refused(target.post(target.body("a", max_tokens=10**9)), 400, 422)


def large(target: Target) -> None:
    """10 MB, declared, in chunks, and sent although nobody asks for more."""
    text = json.dumps(target.body("x" * 10_000_000)).encode()
    assert_refused(target.post(text), 413)
    chunked = target.head("POST", f"/{_CHAT}", "Transfer-Encoding: chunked")
    piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    with target.connect() as client:
        try:
            client.sendall(chunked + piece * 160)
        except ConnectionError:
            return
        assert_refused(_split(read_all(client)), 413)


def long_prompt(target: Target) -> None:
    reply = target.post(target.body("who is it " * 3_400))
    assert_refused(reply, 400)
    assert b"tokens" in reply[1]


def markup(target: Target) -> None:
    """Texts come back as JSON, which no browser shows as a page."""
    for content in (_MARKUP, _CONTROL):
        with target.connect() as client:
            raw = json.dumps(target.body(content)).encode()
            about = ("Content-Type: application/json", "Connection: close")
            client.sendall(target.head("POST", f"/{_CHAT}", *about, size=len(raw)) + raw)
            head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert b" 200 " in head and b"content-type: application/json" in head.lower(), head
        assert b"nosniff" in head.lower() and b"content-security-policy" in head.lower()
        assert not any(byte < 0x20 or byte > 0x7E for byte in body)
    assert_refused(target.post(target.body("a", **{_MARKUP: 1})), 400)
    assert_refused(target.post({**target.body("a"), "model": _MARKUP}), 404)


def strangers(target: Target) -> None:
    """Other names of the server, pages of others, and, where there is a key, other keys."""
    ask = json.dumps(target.body("a")).encode()
    for name in ("Host: evil.example", "Host: 127.0.0.1.evil.example", "Host: [", "Host: "):
        assert_refused(target.post(ask, name), 400, 403)
    for origin in ("http://evil.example", "null", "https://127.0.0.1:1", "file://"):
        assert_refused(target.post(ask, f"Origin: {origin}"), 403)
    if target.key is not None:
        for key in (None, "wrong", target.key[:-1], f"{target.key}a", target.key.upper(), "\xff"):
            assert_refused(target.post(ask, key=key), 401)
            assert_refused(
                target.send(target.head("GET", "/metrics", "Connection: close", key=key)), 401
            )


def other_files(target: Target) -> None:
    for path in _PATHS:
        status, body = target.send(target.head("GET", path, "Connection: close"))
        assert status in (400, 403, 404), (path, status)
        assert b"root:" not in body


def nonsense(target: Target) -> None:
    """Bytes that are not HTTP, and HTTP that contradicts itself."""
    raws = (
        *(b"\x16\x03\x01\x02\x00" * 20, b"GET\r\n\r\n", b"\r\n" * 50 + b"x", bytes(1000)),
        target.head("POST", f"/{_CHAT}", "Content-Length: -5"),
        target.head("POST", f"/{_CHAT}", "Content-Length: 5", "Transfer-Encoding: chunked")
        + b"0\r\n\r\n",
        target.head("GET", "/", *(f"A{n}: b" for n in range(200))),
        target.head("GET", "/" + "a" * 30_000),
        target.head("PROPFIND", f"/{_CHAT}", "Connection: close"),
    )
    for raw in raws:
        with target.connect() as client:
            client.sendall(raw)
            client.shutdown(socket.SHUT_WR)
            reply = read_all(client)
        assert b" 200 " not in reply[:15] and b" 500 " not in reply[:15], (raw[:60], reply)


def leavers(target: Target) -> None:
    """Clients that leave in the middle: of a stream, of a whole answer, of their own request."""
    for _ in range(8):
        target.open_stream(f"tell {SECRET}", 200).close()
    raw = json.dumps(target.body(f"tell {SECRET}", max_tokens=200)).encode()
    for part in (raw, raw[: len(raw) // 2]):
        for _ in range(4):
            with target.connect() as client:
                about = ("Content-Type: application/json",)
                client.sendall(target.head("POST", f"/{_CHAT}", *about, size=len(raw)) + part)


def slow_loris(target: Target) -> None:
    """200 connections that send a request byte by byte; the others are answered meanwhile."""
    with ExitStack() as opened:
        clients = [opened.enter_context(target.connect()) for _ in range(200)]
        start = target.head("POST", f"/{_CHAT}", size=500)[:-2]
        for place in range(3):
            for client in clients:
                client.sendall(start[place : place + 1])
        assert_alive(target)


ATTACKS: dict[str, Callable[[Target], None]] = {
    attack.__name__: attack
    for attack in (
        *(malformed, unusual_fields, large, long_prompt, markup, strangers, other_files),
        *(nonsense, leavers, slow_loris),
    )
}
