"""A judge that attacks its client, over real sockets: the key appears nowhere, and no reply takes
unbounded time or memory."""

import base64
import gzip
import html
import json
import logging
import re
import socket
import threading
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from clew.base.errors import ClewError, InputError, StoreError
from clew.hallucination.labels.chat import Chat, ChatConfig, JudgeError, Secret
from clew.hallucination.labels.judge import JudgedFile, parse_reply
from tests.hallucination.labels.judge_server import Attack, hostile

pytestmark = pytest.mark.slow

KEY = "sk-Very/Secret+99=<&>"


def ask(attack: Attack, **settings: Any) -> str:
    defaults = {"attempts": 1, "timeout_seconds": 60.0, "key": KEY, "first_wait_seconds": 0.01}
    with hostile(attack) as url:
        config = ChatConfig(url=url, model="grader", **{**defaults, **settings})
        with Chat(config) as chat:
            return chat.ask([{"role": "user", "content": "?"}])


def sends(body: bytes, *headers: str, status: int = 200) -> Attack:
    head = "\r\n".join((f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers))
    return lambda client: client.sendall(head.encode() + b"\r\n\r\n" + body)


def says(content: str) -> Attack:
    return sends(json.dumps({"choices": [{"message": {"content": content}}]}).encode())


ECHOES = {
    "as it is": KEY,
    "with its scheme": f"Bearer {KEY}",
    "in capitals": KEY.upper(),
    "in a URL": quote(KEY, safe=""),
    "in a URL twice": quote(quote(KEY, safe=""), safe=""),
    "as JSON": "".join(f"\\u{ord(sign):04x}" for sign in KEY),
    "as JSON with slashes": KEY.replace("/", "\\/"),
    "as HTML": html.escape(KEY),
    "as HTML numbers": "".join(f"&#{ord(sign)};" for sign in KEY),
    "over lines": "\n".join(KEY),
    "in Base64": base64.b64encode(KEY.encode()).decode(),
    "in Base64 with its scheme": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "at the cut": "x" * 190 + KEY,
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_every_spelling_of_the_key_is_hidden(echo: str) -> None:
    shown = Secret(KEY).hide(f"your key is {echo}, ok")
    assert "***" in shown or len(shown) == 200
    for part in ("sk-", "Secret", "%53", "U2Vj", "0053", "&#", "VmVyeS"):
        assert part.lower() not in shown.lower()


@pytest.mark.parametrize(
    "attack",
    [
        sends(f"your key: {KEY}".encode()),
        sends(f"your key: {KEY}".encode(), status=401),
        sends(f"your key: {KEY}".encode(), status=404),
        sends(f"your key: {KEY}".encode(), status=500),
        sends(b"", f"Location: http://evil.example/?key={quote(KEY)}", status=307),
        sends(b"", f"{KEY} is no header"),
        sends(b"", f"A: {KEY}", status=500),
        lambda client: client.sendall(f"HTTP/1.1 500 {KEY}\r\n\r\n".encode()),
        lambda client: client.sendall(f"{KEY}\r\n\r\n".encode()),
        lambda client: client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n".encode()),
    ],
)
def test_key_is_in_no_error_traceback_or_log(
    attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ClewError) as caught:
        ask(attack, attempts=2)
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not re.search(r"very/|secret\+|99=<|very%2f|secret%2b", told.lower())


def test_redirects_are_not_followed() -> None:
    reached: list[socket.socket] = []
    with hostile(reached.append) as other:
        attack = sends(b"", f"Location: {other}", status=308)
        with pytest.raises(InputError, match="moved to http://127"):
            ask(attack)
    assert not reached


def drip(start: bytes) -> Attack:
    def attack(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            client.sendall(b"1")
            threading.Event().wait(0.01)

    return attack


def flood(start: bytes, piece: bytes) -> Attack:
    def attack(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            client.sendall(piece)

    return attack


@pytest.mark.parametrize(
    "attack",
    [
        drip(b"HTTP/1.1 200 OK\r\nA: "),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"),
        drip(b""),
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_whole_request_has_a_time_limit(attack: Attack) -> None:
    with pytest.raises(JudgeError, match=r"it did not reply within 0\.2 s"):
        ask(attack, timeout_seconds=0.2)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (flood(b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 16)), "larger than 100 kB"),
        (
            flood(
                b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"10000\r\n" + bytes(1 << 16) + b"\r\n",
            ),
            "larger than 100 kB",
        ),
        (flood(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"), "the connection was lost"),
        (flood(b"HTTP/1.1 200 OK\r\nA: ", bytes(b"b" * 1000)), "the connection was lost"),
        (
            sends(gzip.compress(bytes(1 << 26)), "Content-Encoding: gzip"),
            "its reply is compressed, although .*: turn compression off",
        ),
    ],
)
def test_reply_of_any_size_takes_bounded_memory(attack: Attack, reason: str) -> None:
    with pytest.raises(JudgeError, match=reason):
        ask(attack, max_reply_bytes=100_000)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"choices": ' + b"[" * 900 + b"]" * 900 + b"}",
        *(b"null", b"7", b'"choices"', b"[]", b"\xff\xfe", b'{"choices": {"0": 1}}'),
        *(b'{"choices": [7]}', b'{"choices": [{"message": [1]}]}', b"1" * 5000),
        b'{"choices": [{"message": {"content": 1e999}}]}',
    ],
    ids=lambda body: body[:20],
)
def test_reply_of_any_shape_is_reported(body: bytes) -> None:
    with pytest.raises(JudgeError, match="its reply is not a chat completion"):
        ask(sends(body))


@pytest.mark.parametrize("coding", ["Identity", "identity ", ""])
def test_plain_reply_may_say_so_in_any_case(coding: str) -> None:
    body = json.dumps({"choices": [{"message": {"content": "YES"}}]}).encode()
    assert ask(sends(body, f"Content-Encoding: {coding}")) == "YES"


@pytest.mark.parametrize("told", ["inf", "1e999", "9" * 400, "Mon, 01 Jan 9999 00:00:00 GMT"])
def test_endless_waits_are_errors(told: str) -> None:
    with pytest.raises(JudgeError, match="asks to wait [0-9,]+ s: run the same command") as caught:
        ask(sends(b"", f"Retry-After: {told}", status=429), attempts=3)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("told", ["nan", "-1", "0", "Mon, 99 Jan 99999999999 00:00:00 GMT", "\xff"])
def test_busy_server_is_asked_a_bounded_number_of_times(told: str) -> None:
    asked: list[bool] = []

    def attack(client: socket.socket) -> None:
        asked.append(True)
        sends(b"", f"Retry-After: {told}", "Connection: close", status=429)(client)

    with pytest.raises(JudgeError, match="after 3 attempts: it returned 429"):
        ask(attack, attempts=3)
    assert len(asked) == 3


def test_key_that_no_header_can_hold_is_not_shown() -> None:
    for key in ("sk-Very\nSecret", "sk-Very Secret", "sk-\N{SNOWMAN}Secret"):
        with pytest.raises(InputError, match="the key in OPENAI_API_KEY contains") as caught:
            Chat(ChatConfig(url="http://127.0.0.1:9", model="m", key=key))
        assert "Secret" not in str(caught.value)


def test_stop_interrupts_a_request() -> None:
    arrived, ended = threading.Event(), threading.Event()

    def attack(_: socket.socket) -> None:
        arrived.set()
        ended.wait(60)

    with hostile(attack) as url, Chat(ChatConfig(url=url, model="m", timeout_seconds=600)) as chat:
        threading.Thread(target=lambda: arrived.wait(60) and chat.stop()).start()
        with pytest.raises(JudgeError, match="it was interrupted"):
            chat.ask([])
        ended.set()


def test_endless_thoughts_are_read_in_one_pass() -> None:
    thoughts = "<think>" * 300_000
    assert parse_reply(f"{thoughts}NO</think>YES") == 1.0
    assert parse_reply(f"{thoughts}YES") is None
    assert parse_reply("no<think>a</think>.") == 0.0


def test_saved_replies_hold_neither_the_key_nor_half_characters(tmp_path: Path) -> None:
    reply = ask(says(f"<think>\ud800\x1b[2J {KEY}</think>YES"))
    assert parse_reply(reply) == 1.0
    with JudgedFile(tmp_path / "judged.jsonl") as judged:
        judged.add("k", 1.0, "q", Secret(KEY).hide(reply))
    saved = (tmp_path / "judged.jsonl").read_text()
    assert "Secret" not in saved and "\x1b" not in saved
    assert JudgedFile(tmp_path / "judged.jsonl").scores == {"k": 1.0}


def test_saved_judgments_of_others_are_read_safely(tmp_path: Path) -> None:
    lines = ["[" * 5000, '{"key": "a", "score": NaN}', '{"key": "b", "score": 0.5}', "7", "\x00"]
    (tmp_path / "judged.jsonl").write_text("\n".join(lines))
    judged = JudgedFile(tmp_path / "judged.jsonl")
    assert judged.scores == {"b": 0.5}
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a symbolic link"):
        JudgedFile(tmp_path / "link.jsonl")
