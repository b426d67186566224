"""The guarded local server over real HTTP: whom it serves, whom it refuses, when it ends."""

import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message

import pytest

from clew.base.errors import InputError
from clew.pages.guard import App, Receive, Scope, Send
from clew.pages.server import LocalServer, open_server


def build_app(stop: Callable[[], None]) -> App:
    """Says where it was asked for; "done" ends the server."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        place = scope["path"].removeprefix(scope["root_path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": place.encode()})
        if place == "/done":
            stop()

    return app


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with open_server(build_app) as opened:
        running = threading.Thread(target=opened.run)
        running.start()
        yield opened
        opened.stop()
        running.join(timeout=60)
        assert not running.is_alive()


def fetch(address: str, **headers: str) -> tuple[int, bytes, Message]:
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def test_app_is_served_below_the_token_with_guarding_headers(server: LocalServer) -> None:
    status, content, headers = fetch(f"{server.address}a/b")
    assert (status, content) == (200, b"/a/b")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


def test_without_the_token_nothing_is_served(server: LocalServer) -> None:
    root = server.address.rsplit("/", 2)[0]
    for path in ("", "/", "/guess/", "/guess/a", "/%ff/a", server.address[len(root) : -2]):
        assert fetch(f"{root}{path}")[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        *({"Host": name} for name in ("evil.example", "127.0.0.1.evil.example", "[bad")),
        *({"Origin": name} for name in ("https://evil.example", "http://[bad", "null")),
    ],
)
def test_other_pages_are_refused(server: LocalServer, headers: dict[str, str]) -> None:
    assert fetch(server.address, **headers)[0] == 403


def test_a_policy_of_the_app_is_kept_only_if_it_is_a_sandbox() -> None:
    def make(policy: bytes) -> Callable[[Callable[[], None]], App]:
        async def app(_: Scope, __: Receive, send: Send) -> None:
            headers = [(b"Content-Security-Policy", policy)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        return lambda _: app

    for policy, start in ((b"sandbox allow-scripts", "sandbox"), (b"script-src *", "default-src")):
        with open_server(make(policy)) as opened:
            running = threading.Thread(target=opened.run)
            running.start()
            found = fetch(opened.address)[2].get_all("Content-Security-Policy")
            opened.stop()
            running.join(timeout=60)
        assert found and len(found) == 1 and found[0].startswith(start)


@pytest.mark.slow
def test_app_can_end_the_server() -> None:
    with open_server(build_app) as opened:
        running = threading.Thread(target=opened.run)
        running.start()
        assert fetch(f"{opened.address}done")[0] == 200
        running.join(timeout=60)
        assert not running.is_alive()


def test_port_that_cannot_be_used_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port is {port}: it cannot be used"):
            open_server(build_app, port).__enter__()
    with pytest.raises(InputError, match="port is 70000: choose one from 1024 to 65535"):
        open_server(build_app, 70000).__enter__()


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r"pip install 'clew\[web\]'"):
        open_server(build_app).__enter__()
