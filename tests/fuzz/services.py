"""Hostile requests to the page that clew serves, and hostile replies to the judge's client."""

import contextlib
import gzip
import shutil
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from clew.errors import ClewError
from clew.hallucination.labels.chat import Chat, ChatConfig
from tests.fuzz.mutations import dump_json, edit_bytes, edit_value, hostile_value
from tests.hallucination.labels.judge_server import hostile

KEY = "sk-secret-0123456789"


def page(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """Raw bytes to the review's page; afterwards the page still answers, and only with its
    token."""
    home = Path(shutil.copytree(corpus / "review", folder / "review"))

    def attempt() -> None:
        from clew.patterns.library.choose import choose_model
        from clew.patterns.review import ReviewConfig, open_review
        from tests.patterns.review.serving import serve

        chosen = choose_model(name="animals", library=home / "patterns")
        with open_review(chosen, ReviewConfig()) as review, serve(review) as served:
            address = urlsplit(served.address)
            for _ in range(20):
                raw = _make_request(chance, address.netloc, address.path)
                reply = _send(address.port or 0, raw)
                assert b"Traceback" not in reply and b" 500 " not in reply[:40], (raw, reply)
            with urllib.request.urlopen(f"{served.address}state", timeout=30) as answer:
                assert answer.status == 200

    return attempt


def _make_request(chance: Random, host: str, token: str) -> bytes:
    path = token + chance.choice(("", "state", "answer", "answer", "done/x", "photos/0", "../x"))
    label = hostile_value(chance)
    given = {"question": 0, "action": chance.choice(("approve", "correct")), "label": label}
    body = dump_json(given) if chance.random() < 0.5 else edit_value(chance, given)
    declared = chance.choice((len(body), len(body), len(body), 10**12, -1, 0, "x"))
    method = "POST" if chance.random() < 0.7 else chance.choice(("GET", "PUT", "HEAD", "X"))
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {chance.choice((host, host, host, 'evil.example', '', '['))}",
        "Content-Type: application/json",
        f"Content-Length: {declared}",
    ]
    raw = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body[:1_000_000]
    return edit_bytes(chance, raw) if chance.random() < 0.3 else raw


def _send(port: int, raw: bytes) -> bytes:
    """What comes back; nothing more is sent, as if the connection had broken."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    with connection, contextlib.suppress(OSError):
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def judge(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """A judge's reply: any bytes. The key never appears in a message."""
    del corpus, folder
    raw = _make_reply(chance)

    def attempt() -> None:
        from tests.fuzz.harness import Refused

        with hostile(lambda client: client.sendall(raw)) as url:
            config = ChatConfig(
                url=url,
                model="m",
                key=KEY,
                attempts=2,
                timeout_seconds=0.5,
                first_wait_seconds=0.01,
            )
            try:
                with Chat(config) as chat:
                    said = chat.ask([{"role": "user", "content": "?"}])
            except ClewError as error:
                assert KEY not in str(error), f"the key was shown: {error}"
                raise Refused(str(error)[:2000]) from None
            assert isinstance(said, str)

    return attempt


def _make_reply(chance: Random) -> bytes:
    good = {"choices": [{"message": {"role": "assistant", "content": "YES"}}]}
    body = dump_json(good) if chance.random() < 0.2 else edit_value(chance, good)
    body = chance.choice((body, body, KEY.encode(), b"[" * 100_000, chance.randbytes(100)))
    headers = {"Content-Length": str(len(body)), "Content-Type": "application/json"}
    status = chance.choice((200, 200, 200, 302, 400, 401, 429, 500, 99, 204))
    if chance.random() < 0.2:
        body = gzip.compress(b" " * 50_000_000)
        headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    if chance.random() < 0.3:
        name = chance.choice(("Location", "Retry-After", "Content-Length", "Transfer-Encoding"))
        values = (f"http://{KEY}.example/", "0", "-1", "nan", "chunked", "9" * 400, KEY)
        headers[name] = chance.choice(values)
    lines = [f"HTTP/1.1 {status} {KEY}", *(f"{n}: {v}" for n, v in headers.items())]
    raw = "\r\n".join([*lines, "", ""]).encode() + body
    return edit_bytes(chance, raw) if chance.random() < 0.3 else raw
