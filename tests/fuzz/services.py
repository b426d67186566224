"""Hostile requests to the pages and the API that clew serves, and hostile replies to the judge's
client."""

import base64
import contextlib
import copy
import gzip
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from clew.base.errors import ClewError
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
        from clew.patterns.review import open_review
        from clew.patterns.settings import ReviewSettings
        from tests.patterns.review.serving import serve

        chosen = choose_model(name="animals", library=home / "patterns")
        with open_review(chosen, ReviewSettings()) as review, serve(review) as served:
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


def api(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """Raw bytes to the service and its page; afterwards an honest client is still answered."""
    del folder

    def attempt() -> None:
        with _serving(corpus) as address:
            for _ in range(20):
                raw = _make_call(chance, address.netloc)
                reply = _send(address.port or 0, raw)
                assert b"Traceback" not in reply and b" 500 " not in reply[:40], (raw, reply)
                assert b"root:" not in reply, (raw, reply)
            status, answer = _answer(address.netloc, {"prompt": "Who is it?", "max_tokens": 2})
            assert status == 200 and b'"clew"' in answer, (status, answer)

    return attempt


@contextlib.contextmanager
def _serving(corpus: Path) -> Iterator[SplitResult]:
    from clew.hallucination.grounded import load_reader
    from clew.hallucination.live.page.stored import open_page_files
    from clew.hallucination.live.session import Session
    from tests.hallucination.live.service.serving import serving

    kept = corpus / "compared" / "detectors" / "linear_probe"
    files = open_page_files(corpus / "traces", corpus / "scores.csv", (corpus / "compared",))
    reader = partial(load_reader, corpus / "reader", device="cpu")
    with (
        Session.open(kept, model=str(corpus / "model"), device="cpu", max_rows=4) as session,
        serving(session, files, reader=reader, max_tokens=16, drain_seconds=1.0) as served,
    ):
        yield urlsplit(served.address)


_MESSAGES = [{"role": "system", "content": "a"}, {"role": "user", "content": "Who is it?"}]
_CALLS: dict[str, Any] = {
    "v1/chat/completions": {"messages": _MESSAGES[1:], "max_tokens": 3, "logprobs": True, "n": 2},
    "v1/completions": {"prompt": ["Who?", "Why?"], "temperature": 0.5, "stop": ["."], "seed": 1},
    "score": [{"question": "Who?", "answer": "Ann."}, {"messages": _MESSAGES, "answer": "a b"}],
    "v1/check": [{"source": ["Ann is it.", "a"], "question": "Who?", "answer": "It is Bob."}],
    "clew/trace": {"question": "Who?", "tokens": [1, 2, 3], "context": None},
}
_PAGES = (
    *("", "v1/models", "v1/models/../x", "metrics", "healthz", "page/page.js", "page/../../x"),
    *("clew/page", "clew/comparisons", "clew/answers", "clew/answers/1", "page/reports/x/0/a.html"),
)


def _make_call(chance: Random, host: str) -> bytes:
    path, good = chance.choice(list(_CALLS.items()))
    given = copy.deepcopy(good)
    if isinstance(given, dict) and chance.random() < 0.3:
        given["stream"] = True
    body = dump_json(given) if chance.random() < 0.2 else edit_value(chance, given)
    method = "POST"
    if chance.random() < 0.2:
        text = quote(str(hostile_value(chance)), errors="replace")
        query = f"?text={text[:2000]}&at={chance.choice((0, -1, 10**30))}"
        path, method, body = chance.choice(_PAGES) + chance.choice(("", query)), "GET", b""
    lines = [
        f"{method} /{path} HTTP/1.1",
        f"Host: {chance.choice((host, host, host, host, 'evil.example', '['))}",
        "Content-Type: application/json",
        f"Content-Length: {chance.choice((len(body), len(body), len(body), len(body), 10**12))}",
        "Connection: close",
    ]
    raw = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body[:1_000_000]
    return edit_bytes(chance, raw) if chance.random() < 0.2 else raw


def _answer(host: str, body: Any) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"http://{host}/v1/completions", dump_json(body), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.status, reply.read()


def identify(chance: Random, corpus: Path, folder: Path) -> Callable[[], None]:
    """Raw bytes to the service of a classifier; afterwards an honest client is still answered."""

    def attempt() -> None:
        from clew.patterns.trained.model import load_classifier
        from tests.patterns.serving.serving import photo_of, serving

        model = load_classifier(corpus / "classifier", "cpu")
        with serving(model, folder / "home") as served:
            address = urlsplit(served.address)
            for _ in range(20):
                raw = _make_upload(chance, address.netloc, corpus / "photos")
                reply = _send(address.port or 0, raw)
                assert b"Traceback" not in reply and b" 500 " not in reply[:40], (raw, reply)
            status, found = served.send("identify", photo_of("red"))
            assert status == 200 and found["label"] == "red", (status, found)
        assert {path.name for path in folder.iterdir()} <= _OWN, "a file outside was written"

    return attempt


_OWN = {"home", "output.txt", "report.txt"}
_PHOTO_PATHS = (
    *("identify", "identify", "identify", "corrections", "corrections/00", "corrections/../x"),
    *("model", "metrics", "", "page/page.js", "page/../../x"),
)


def _make_upload(chance: Random, host: str, photos: Path) -> bytes:
    photo = chance.choice(sorted(photos.iterdir())).read_bytes()
    encoded = base64.b64encode(photo).decode()
    given = {"image": encoded, "name": "a.png", "label": "red", "top_k": 2, "heat_map": True}
    bodies = (
        ("image/png", photo),
        ("image/jpeg", edit_bytes(chance, photo)),
        ("application/json", edit_value(chance, given)),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n" + photo),
    )
    kind, body = chance.choice(bodies)
    odd = [quote(str(hostile_value(chance)), errors="replace")[:2000] for _ in range(3)]
    query = "?name={}&label={}&top_k={}&heat_map=1".format(*odd)
    path = chance.choice(_PHOTO_PATHS) + chance.choice(("", "?label=red", query))
    lines = [
        f"{chance.choice(('POST', 'POST', 'POST', 'GET', 'DELETE', 'X'))} /{path} HTTP/1.1",
        f"Host: {chance.choice((host, host, host, host, 'evil.example', '['))}",
        f"Content-Type: {kind}",
        f"Content-Length: {chance.choice((len(body), len(body), len(body), 10**12, 'x'))}",
        "Connection: close",
    ]
    raw = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body[:400_000]
    return edit_bytes(chance, raw) if chance.random() < 0.2 else raw


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
