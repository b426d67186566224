"""The page's server over real HTTP: what it serves, what it accepts, and whom it refuses."""

import io
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review import Review
from tests.patterns.review.making import NAMES, list_photos, reviewing
from tests.patterns.review.serving import Served, serve

pytestmark = pytest.mark.slow


@pytest.fixture
def review(animals: PatternSet) -> Iterator[Review]:
    with reviewing(animals) as opened:
        yield opened


@pytest.fixture
def served(review: Review) -> Iterator[Served]:
    with serve(review) as server:
        yield server


def fetch(address: str, body: Any = None, **headers: str) -> tuple[int, bytes, Message]:
    data = None if body is None else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def answer(served: Served, **body: Any) -> tuple[int, dict[str, Any]]:
    status, content, _ = fetch(f"{served.address}answer", body)
    return status, json.loads(content)


def test_page_loads_nothing_from_other_hosts(served: Served) -> None:
    status, page, headers = fetch(served.address)
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for name, kind in (("page.css", b":root"), ("page.js", b'"use strict"')):
        assert name.encode() in page
        status, content, _ = fetch(served.address + name)
        assert status == 200 and kind in content
        assert b"http://" not in content and b"https://" not in content


def test_whole_review_works_over_http(served: Served, animals: PatternSet) -> None:
    state = json.loads(fetch(f"{served.address}state")[1])
    assert (state["place"], state["total"]) == (0, 4) and state["question"]["name"] == "a.png"
    first = {"label": "cat", "key": "1", "probability": 0.3, "text": "30%"}
    assert state["question"]["guesses"][0] == first
    assert "cat/a.png" in answer(served, question=0, action="approve")[1]["message"]
    new_classes = answer(served, question=1, action="correct", label="wolf")[1]["new_classes"]
    assert "wolf (1)" in new_classes and "at least 3 photos" in new_classes
    assert answer(served, question=2, action="skip")[1]["counts"]["skipped"] == 1
    assert answer(served, question=3, action="undo")[1]["place"] == 2
    assert answer(served, question=2, action="approve")[0] == 200
    status, state = answer(served, question=3, action="approve")
    assert status == 200 and state["question"] is None
    assert state["counts"] == {"approved": 3, "corrected": 1, "skipped": 0}
    assert state["command"].startswith('clew.patterns.train(name="animals"')
    assert len(list_photos(animals.photos)) == 3 + 4
    assert fetch(f"{served.address}done", {})[0] == 200
    assert served.has_ended()


def test_photos_are_served_as_bare_images_by_number(served: Served, photos: Path) -> None:
    with Image.open(photos / "a.png") as picture:
        picture.save(photos / "a.png", exif=b"Exif\0\0secret place")
    status, content, headers = fetch(f"{served.address}photos/0")
    assert status == 200 and headers["Content-Type"] == "image/jpeg" and b"secret" not in content
    assert Image.open(io.BytesIO(content)).size == (40, 40)
    (photos / NAMES[1]).unlink()
    assert fetch(f"{served.address}photos/1")[0] == 410


@pytest.mark.parametrize(
    "path",
    [
        *("photos/4", "photos/-1", "photos/a.png", "photos/..%2f..%2freview.json"),
        *("../state", "../../etc/passwd", "review.json", "page.html", "app.py", "%2e%2e/app.py"),
        *("docs", "openapi.json", "photos/%00", f"photos/{'9' * 9000}", "photos/1e400"),
    ],
)
def test_nothing_else_is_served(served: Served, path: str) -> None:
    assert fetch(served.address + path)[0] in (404, 422)


def test_without_the_token_nothing_is_shown_or_changed(served: Served, review: Review) -> None:
    parts = urlsplit(served.address)
    root = f"{parts.scheme}://{parts.netloc}/"
    body = {"question": 0, "action": "approve"}
    for address in (root, f"{root}guess/", f"{root}guess/state", f"{served.address[:-2]}/state"):
        assert fetch(address)[0] == 404
    assert fetch(f"{root}guess/answer", body)[0] == 404
    assert fetch(f"{root}guess/done", {})[0] == 404
    assert review.place == 0


def test_refusal_reaches_a_client_whose_body_comes_late(served: Served) -> None:
    """Closing a connection with unread bytes would reset it, and the reply would be lost."""
    parts = urlsplit(served.address)
    with socket.create_connection(
        (str(parts.hostname), int(parts.port or 0)), timeout=60
    ) as client:
        head = "POST /guess/answer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 70000\r\n"
        client.sendall(f"{head}Connection: close\r\n\r\n".encode())
        for _ in range(7):
            client.sendall(b"x" * 10_000)
        reply = b"".join(iter(lambda: client.recv(4096), b""))
    assert reply.startswith(b"HTTP/1.1 404") and reply.endswith(b"not found")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[bad"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_pages_are_refused_even_with_the_token(
    served: Served, review: Review, headers: dict[str, str]
) -> None:
    body = {"question": 0, "action": "approve"}
    assert fetch(f"{served.address}answer", body, **headers)[0] == 403
    assert review.place == 0


def test_forwarded_port_is_accepted(served: Served) -> None:
    assert fetch(f"{served.address}state", Host="localhost:9999")[0] == 200


def test_key_pressed_twice_answers_one_question(served: Served, review: Review) -> None:
    assert answer(served, question=0, action="approve")[0] == 200
    status, state = answer(served, question=0, action="approve")
    assert status == 409 and "The page was out of date" in state["error"] and review.place == 1


def test_impossible_answers_are_reported(served: Served, photos: Path) -> None:
    status, state = answer(served, question=0, action="undo")
    assert status == 400 and "there is nothing to undo" in state["error"]
    status, state = answer(served, question=0, action="correct", label="../../etc")
    assert status == 400 and "cannot be the name of a class" in state["error"]
    (photos / "a.png").unlink()
    status, state = answer(served, question=0, action="approve")
    assert status == 400 and "can no longer be read" in state["error"]


@pytest.mark.parametrize(
    "body",
    [
        *({}, [], {"question": 0, "action": "dance"}, {"question": "x", "action": "skip"}),
        *({"question": 0, "action": ["skip"]}, {"question": 1e300, "action": "skip"}),
        *({"question": None, "action": "skip"}, {"question": 0, "action": "correct", "label": 7}),
    ],
)
def test_wrong_requests_get_a_reason_and_the_state(served: Served, body: Any) -> None:
    status, content, _ = fetch(f"{served.address}answer", body)
    state = json.loads(content)
    assert status == 422 and state["error"].startswith("The request is not valid: ")
    assert state["error"].endswith("Nothing was changed.") and state["place"] == 0


@pytest.mark.parametrize(
    ("label", "status"),
    [
        *(
            (one, 400)
            for one in ("", " ", "a\u202eb", "a\x1b[2J", "a\x00", "c" * 200, "c" * 900_000)
        ),
        *((one, 400) for one in ("\ud800", "..", "a/b", "\u2028")),
        ("c" * 10**6, 413),
        ("\N{PILE OF POO}", 200),
    ],
)
def test_odd_labels_are_refused_in_a_short_sentence(
    served: Served, review: Review, label: str, status: int
) -> None:
    body = {"question": 0, "action": "correct", "label": label}
    told, content, _ = fetch(f"{served.address}answer", body)
    assert told == status and len(content) < 2000
    assert review.place == (status == 200)


def test_unknown_methods_are_refused(served: Served) -> None:
    for method in ("PUT", "DELETE", "PATCH", "BREW"):
        request = urllib.request.Request(f"{served.address}answer", b"{}", method=method)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(request, timeout=60)


def test_server_listens_only_to_this_machine(served: Served) -> None:
    parts = urlsplit(served.address)
    assert parts.hostname == "127.0.0.1" and parts.port
    # All of 127.0.0.0/8 is this machine, but the server has only one of its addresses.
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", parts.port), timeout=5)
