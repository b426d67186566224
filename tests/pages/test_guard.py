"""Hostile clients of the guarded local server, over real sockets: each is answered or cut off, and
none takes memory, time or connections from the others."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

import psutil
import pytest

from clew.pages.guard import App, Limits, Receive, Scope, Send
from clew.pages.server import LocalServer, open_server

pytestmark = pytest.mark.slow

LIMITS = Limits(body_bytes=10_000, linger_seconds=0.1)
HASTY = Limits(body_bytes=1000, head_seconds=0.3, body_seconds=0.3, linger_seconds=0.1)


def build_app(_: Callable[[], None]) -> App:
    """Returns the body; below "/large", far more than a socket buffers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"], "an app gets every body in one piece"
        pieces = 400 if scope["path"].endswith("/large") else 0
        size = str(pieces << 18 or len(message["body"])).encode()
        headers = [(b"content-length", size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": bytes(1 << 18), "more_body": True})
        await send({"type": "http.response.body", "body": message["body"]})

    return app


@contextmanager
def serving(limits: Limits) -> Iterator[LocalServer]:
    with open_server(build_app, limits=limits) as opened:
        running = threading.Thread(target=opened.run)
        running.start()
        try:
            yield opened
        finally:
            opened.stop()
            running.join(timeout=60)
            assert not running.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with serving(LIMITS) as opened:
        yield opened


def connect(server: LocalServer) -> socket.socket:
    parts = urlsplit(server.address)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=60)


def head(server: LocalServer, *headers: str, path: str | None = None, method: str = "POST") -> str:
    place = urlsplit(server.address).path if path is None else path
    lines = (f"{method} {place} HTTP/1.1", "Host: 127.0.0.1", *headers)
    return "\r\n".join(lines) + "\r\n\r\n"


def read_all(client: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def send_raw(server: LocalServer, *parts: str | bytes) -> bytes:
    """What comes back for bytes as they are, until the server closes the connection."""
    with connect(server) as client:
        for part in parts:
            client.sendall(part.encode() if isinstance(part, str) else part)
        return read_all(client)


def post(server: LocalServer, body: bytes, *headers: str) -> tuple[int, str]:
    sized = (f"Content-Length: {len(body)}", "Connection: close", *headers)
    return split(send_raw(server, head(server, *sized), body))


def split(reply: bytes) -> tuple[int, str]:
    return int(reply.split()[1]), reply.partition(b"\r\n\r\n")[2].decode()


@pytest.mark.parametrize("token", ["guess", "", "%ff", "a" * 9000])
def test_body_of_a_stranger_is_refused_before_it_is_read(server: LocalServer, token: str) -> None:
    claimed = f"Content-Length: {1 << 40}"
    reply = send_raw(server, head(server, claimed, "Expect: 100-continue", path=f"/{token}/a"))
    assert split(reply) == (404, "not found")


@pytest.mark.parametrize(
    "headers",
    [("Content-Length: 10001",), (f"Content-Length: {1 << 50}",), ("Transfer-Encoding: chunked",)],
)
def test_large_body_is_refused_with_the_limit(
    server: LocalServer, headers: tuple[str, ...]
) -> None:
    status, reason = split(send_raw(server, head(server, *headers), b"2711\r\n" + bytes(10_001)))
    assert status == 413 and "larger than 10 kB" in reason


def test_streamed_gigabytes_take_no_memory(server: LocalServer) -> None:
    """As long as the server reads at all; it ends the connection after a moment."""
    piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    this, most = psutil.Process(), 0
    before = this.memory_info().rss
    for path in (None, "/guess/"):
        with connect(server) as client, pytest.raises(ConnectionError):
            client.sendall(head(server, "Transfer-Encoding: chunked", path=path).encode())
            for _ in range(1_500_000_000 >> 16):
                client.sendall(piece)
                most = max(most, this.memory_info().rss)
    assert most - before < 20 << 20


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"a": 1e400}', "too large a number"),
        (b'{"a": NaN}', "NaN"),
        (b"[" * 500, "not valid JSON"),
        (b"[" * 500 + b"]" * 500, "nested more than"),
        (rb'{"a": "\ud800"}', "a character that is not valid"),
        (rb'{"\udfff": 1}', "a character that is not valid"),
        (b"1" * 999, ""),
        (b"1" * 5000, "not valid JSON: it contains a number of more than 4,300 digits"),
    ],
)
def test_only_valid_json_reaches_the_app(server: LocalServer, body: bytes, reason: str) -> None:
    status, told = post(server, body, "Content-Type: application/json")
    assert (status, reason in told) == (400 if reason else 200, True)
    assert post(server, body) == (status, told), "a body without a type is JSON too"


def test_other_bodies_are_passed_on_whole(server: LocalServer) -> None:
    assert post(server, b"[" * 1000, "Content-Type: text/plain") == (200, "[" * 1000)
    pieces = (b"2\r\n[1\r\n", b"1\r\n]\r\n0\r\n\r\n")
    start = head(server, "Transfer-Encoding: chunked", "Connection: close")
    assert b"[1]" in send_raw(server, start, *pieces)


@pytest.fixture
def hasty_server() -> Iterator[LocalServer]:
    with serving(HASTY) as opened:
        yield opened


def test_slow_clients_are_cut_off(hasty_server: LocalServer) -> None:
    """A byte now and then does not help: the whole head and the whole body have a time limit."""
    slow_head, slow_body = connect(hasty_server), connect(hasty_server)
    slow_body.sendall(head(hasty_server, "Content-Length: 900").encode())
    start = head(hasty_server).encode()
    for place in range(900):
        try:
            slow_head.sendall(start[place % 20 : place % 20 + 1])
            slow_body.sendall(b" ")
        except ConnectionError:
            break
        if not _is_open(slow_head):
            break
        threading.Event().wait(0.02)
    assert not _is_open(slow_head)
    assert split(read_all(slow_body))[0] == 408
    slow_head.close(), slow_body.close()


def _is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        client.settimeout(60)


def test_client_that_reads_nothing_is_cut_off() -> None:
    with serving(Limits(connections=1, write_seconds=0.1)) as server, connect(server) as client:
        path = f"{urlsplit(server.address).path}large"
        client.sendall(head(server, path=path, method="GET").encode())
        client.recv(1)
        while send_raw(server, head(server, "Connection: close")).startswith(b"HTTP/1.1 503"):
            threading.Event().wait(0.02)
        assert len(read_all(client)) < 400 << 18


SLOW = {
    "head": "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "upload": "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
}
PATIENT = Limits(connections=16, head_seconds=600, body_seconds=600, linger_seconds=600)


@pytest.mark.parametrize("slow", SLOW)
def test_slow_connections_make_room_for_every_other_client(slow: str) -> None:
    """Many times as many as there may be; the oldest go first, and are told why."""
    with serving(PATIENT) as server, ExitStack() as opened:
        clients = []
        for _ in range(80):
            client = opened.enter_context(connect(server))
            client.sendall(SLOW[slow].encode())
            clients.append(client)
            assert post(server, b"1") == (200, "1")
        status, reason = split(read_all(clients[0]))
        assert status in {404, 503} and reason
        assert clients[-1].send(b"X") and _is_open(clients[-1])


def test_clients_with_the_token_are_the_last_to_make_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(PATIENT) as server, ExitStack() as opened:
        uploading = opened.enter_context(connect(server))
        uploading.sendall((head(server, "Content-Length: 2", "Connection: close") + "1").encode())
        for _ in range(80):
            slow = opened.enter_context(connect(server))
            with suppress(OSError):  # it has made room already
                slow.sendall(SLOW["head"].encode())
        assert post(server, b"1") == (200, "1")
        uploading.sendall(b"2")
        assert split(read_all(uploading)) == (200, "12")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_refused_uploads_see_the_reason_while_all_connections_are_busy() -> None:
    """Their bytes are read on: the connection of none is reset."""
    busy = replace(PATIENT, connections=1, write_seconds=600)
    with serving(busy) as server, connect(server) as client:
        path = f"{urlsplit(server.address).path}large"
        client.sendall(head(server, path=path, method="GET").encode())
        client.recv(1)
        replies = [post(server, bytes(5_000_000)) for _ in range(36)]
    assert {status for status, _ in replies} == {503}
    assert "too many connections" in replies[0][1]


@pytest.mark.parametrize(
    ("request_lines", "status"),
    [
        (("\0\x16\x03\x01 / HTTP/1.1", "Host: 127.0.0.1"), 400),
        (("POST / HTTP/1.1",), 400),
        (("POST / HTTP/1.1", "Host: 127.0.0.1", "Host: evil.example"), 400),
        (("POST / HTTP/1.1", "Host: 127.0.0.1", "Content-Length: -1"), 400),
        (("POST / HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 1", "Content-Length: 2"), 400),
        (("POST / HTTP/1.1", "Host: 127.0.0.1", "A: " + "b" * 20_000), 431),
        (("POST / HTTP/1.1", "Host: 127.0.0.1", *(f"A{i}: b" for i in range(100))), 431),
        (("GET TOKEN HTTP/1.0",), 403),
    ],
)
def test_nonsense_is_answered_without_a_log(
    server: LocalServer,
    request_lines: tuple[str, ...],
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = urlsplit(server.address).path
    first = request_lines[0].replace(" / ", f" {place} ").replace("TOKEN", place)
    reply = send_raw(server, "\r\n".join((first, *request_lines[1:])) + "\r\n\r\n")
    assert split(reply)[0] in {status, 400}
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_connection_is_kept_after_an_answer_and_closed_after_a_refusal(server: LocalServer) -> None:
    """A body that belongs to a refused request is never taken for the next request."""
    good = head(server, "Content-Length: 1") + "1"
    bad = head(server, "Content-Length: 1", path="/guess/") + "1"
    reply = send_raw(server, good + good + bad + good)
    assert reply.count(b"HTTP/1.1 200") == 2 and reply.count(b"HTTP/1.1 404") == 1
    smuggled = head(server, "Content-Length: 50000") + good * 20
    assert send_raw(server, smuggled).count(b"HTTP/1.1") == 1


def test_two_lengths_of_a_body_are_refused_and_the_connection_is_closed(
    server: LocalServer,
) -> None:
    good = head(server, "Content-Length: 1") + "1"
    both = head(server, "Content-Length: 6", "Transfer-Encoding: chunked") + "0\r\n\r\n"
    reply = send_raw(server, both + good)
    assert split(reply) == (400, "give Content-Length or Transfer-Encoding, not both")
    assert reply.count(b"HTTP/1.1") == 1


def test_server_stops_while_a_client_is_still_sending(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Limits()) as server, connect(server) as client:
        client.sendall(head(server, "Content-Length: 900").encode())
        assert post(server, json.dumps("x").encode())[0] == 200
    assert not caplog.records
