"""Limits, clients that leave, and the end of the server, over real connections."""

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import openai
import pytest

from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import DIALOGUE, MODEL, Served, serving

pytestmark = pytest.mark.slow

LONG = {"model": MODEL, "messages": DIALOGUE, "max_tokens": 200}
LONGEST = {**LONG, "max_tokens": 900}  # takes long enough for what must happen meanwhile


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_takes_its_request_out_of_the_batch(
    session: Session, is_stream: bool
) -> None:
    before = tokens_of(session)
    with serving(session, max_tokens=900) as served:
        connection = http.client.HTTPConnection(served.address.split("/")[2], timeout=60)
        body = json.dumps({**LONGEST, "n": 8, "stream": is_stream})
        connection.request("POST", "/v1/chat/completions", body)
        served.wait_until(lambda: tokens_of(session) > before)
        connection.close()
        served.wait_until_idle()
        served.wait_until(lambda: "clew_disconnected_total 1" in served.fetch("metrics")[1])
    assert tokens_of(session) - before < 8 * 900


def tokens_of(session: Session) -> int:
    return 0 if session.load is None else session.load.tokens


def test_a_full_queue_is_refused_and_recovers(narrow_session: Session) -> None:
    """One row, one waiting: the third answer has no place."""
    with serving(narrow_session) as served, served.client() as client:
        with pytest.raises(openai.RateLimitError) as error:
            client.chat.completions.create(**LONG, n=16)
        assert error.value.code == "queue_full"
        assert int(error.value.response.headers["retry-after"]) > 0
        served.wait_until_idle()
        assert client.chat.completions.create(**{**LONG, "max_tokens": 1}).choices


def test_what_takes_too_long_ends_with_an_error(session: Session) -> None:
    with serving(session, request_seconds=0.01) as served, served.client() as client:
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(**LONG, n=8)
        assert (error.value.status_code, error.value.code) == (503, "timeout")
        with pytest.raises(openai.APIError, match="not finished within"):
            list(client.chat.completions.create(**LONG, n=8, stream=True))
        served.wait_until_idle()


def test_a_request_that_runs_out_of_memory_is_told_so(
    narrow_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(narrow_session) as served, served.client() as client:
        client.chat.completions.create(**{**LONG, "max_tokens": 1})
        room = narrow_session._engine._batch._pool  # type: ignore[union-attr]
        monkeypatch.setattr(room, "_max_cells", 0)
        for is_stream in (False, True):
            with pytest.raises(openai.APIError, match="Memory ran out") as error:
                list(client.chat.completions.create(**LONG, stream=is_stream))
            assert error.value.code == "out_of_memory"
        monkeypatch.undo()
        assert client.chat.completions.create(**{**LONG, "max_tokens": 1}).choices


@contextmanager
def held(session: Session) -> Iterator[None]:
    """No token is generated meanwhile."""
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go_on.wait(60)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(session.call, hold)
        try:
            assert is_held.wait(60)
            yield
        finally:
            may_go_on.set()


def test_streams_finish_while_the_server_ends(session: Session) -> None:
    with serving(session, drain_seconds=60) as served, served.client() as client:
        stream = client.chat.completions.create(**LONG, stream=True)
        first = next(stream)
        with held(session):
            served.ending.begin()
            assert served.fetch("readyz")[0] == 503
            assert served.fetch("v1/completions", {"prompt": "a"})[0] == 503
            assert served.fetch("healthz")[0] == 200
        *_, last = stream
        assert last.id == first.id and last.choices[0].finish_reason == "length"


def test_streams_that_do_not_finish_in_time_end_properly(session: Session) -> None:
    settings = {"drain_seconds": 0, "max_tokens": 900}
    with serving(session, **settings) as served, served.client() as client:
        stream = client.chat.completions.with_raw_response.create(**LONGEST, n=8, stream=True)
        lines = stream.http_response.iter_lines()
        next(lines)
        served.ending.begin()
        *_, error, _, done, _ = lines
        assert "shutting_down" in error and done == "data: [DONE]"


def test_slow_headers_without_a_key_lock_out_no_client_with_one(session: Session) -> None:
    key = "sk-of-this-test-0001"
    with serving(session, keys=[key]) as served, ExitStack() as opened:
        place = urlsplit(served.address)
        statuses = []
        for number in range(600):
            slow = socket.create_connection((str(place.hostname), int(place.port or 0)), 60)
            opened.enter_context(slow).sendall(b"GET /v1/models HTTP/1.1\r\n")
            if number % 10 == 9:
                statuses.append(served.fetch("v1/models", Authorization=f"Bearer {key}")[0])
    assert statuses == [200] * 60


@pytest.mark.parametrize(
    ("path", "status"),
    [("nothing", 404), ("v1/embeddings", 404), ("../etc/passwd", 404), ("v1/completions", 405)],
)
def test_paths_that_do_not_exist_have_the_shape_of_openai(
    served: Served, path: str, status: int
) -> None:
    found, content, _ = served.fetch(path)
    assert found == status and content["error"]["type"] == "invalid_request_error"


def test_other_types_than_json_are_refused(served: Served) -> None:
    body = b'{"messages": [{"role": "user", "content": "a"}]}'
    status, content, _ = served.fetch(
        "v1/chat/completions", body, **{"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert status == 415 and "Content-Type: application/json" in content["error"]["message"]


def test_texts_are_logged_only_if_asked_for(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for log_requests in (False, True):
        with serving(session, log_requests=log_requests) as served, served.client() as client:
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "a secret"}], max_tokens=1
            )
        own = [one.getMessage() for one in caplog.records if one.name.startswith(("clew", "uvi"))]
        assert any("a secret" in line for line in own) is log_requests
