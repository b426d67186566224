"""In front of another server: what passes, what is added, and what never leaves."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.grounded import load_reader
from clew.hallucination.live.feedback import Feedback
from clew.hallucination.live.service.inspection import PassedAnswer, find_sources
from clew.hallucination.live.service.relay import read_input
from clew.hallucination.live.service.requests import read_messages
from clew.hallucination.live.service.upstream import UpstreamSettings
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import QUESTION, Served, serving
from tests.hallucination.live.service.upstreams import (
    ANSWER,
    Handler,
    Running,
    chunks,
    raw_upstream,
    response,
    response_events,
    running,
    say,
    whole,
)

pytestmark = pytest.mark.slow

CHAT, TEXT, RESPONSES = "v1/chat/completions", "v1/completions", "v1/responses"
ASK = {"model": "any", "messages": QUESTION}
STREAM = {**ASK, "stream": True}
CLEW = re.compile(rb',"clew":\{(?:[^{}]|\{[^{}]*\})*\}')


@pytest.fixture(scope="module")
def upstream() -> Iterator[Running]:
    with running() as opened:
        yield opened


@pytest.fixture(scope="module")
def fronted(session: Session, upstream: Running) -> Iterator[Served]:
    with in_front(session, upstream.url) as opened:
        yield opened


def in_front(session: Session, url: str, keys: Any = (), feedback: Any = None, **settings: Any):
    own = {key: settings.pop(key) for key in ("key", "check", "check_seconds") if key in settings}
    # A loaded machine may take long for a check.
    given = UpstreamSettings(url=url, **{"passes_keys": not keys, "check_seconds": 60.0, **own})
    return serving(session, keys=keys, feedback=feedback, upstream=given, **settings)


def events(text: str) -> list[Any]:
    """The events of a stream, which ends with its mark."""
    *found, last, empty = text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(one.removeprefix("data: ")) for one in found]


def test_a_response_keeps_its_bytes_and_gets_a_risk(fronted: Served) -> None:
    status, content, headers = fronted.fetch(CHAT, ASK)
    clew_object = content["clew"]
    assert status == 200 and clew_object["state"] == "checked" and 0 <= clew_object["risk"] <= 1
    assert clew_object == content["choices"][0]["clew"] and clew_object["tokens"]
    assert headers["X-Clew-State"] == "checked"
    assert float(headers["X-Clew-Risk"]) == pytest.approx(clew_object["risk"], abs=1e-6)
    assert headers["x-request-id"] == "of-the-upstream" and "Set-Cookie" not in headers
    raw = fetch_bytes(fronted, CHAT, ASK)
    assert CLEW.sub(b"", raw) == whole([ANSWER], is_chat=True)


def fetch_bytes(served: Served, path: str, body: Any) -> bytes:
    request = urllib.request.Request(
        f"{served.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def test_the_risk_is_that_of_v1_score(fronted: Served) -> None:
    scored = fronted.fetch("v1/score", {"messages": QUESTION, "answer": ANSWER})[1]
    assert fronted.fetch(CHAT, ASK)[1]["clew"]["risk"] == pytest.approx(scored["risk"], abs=1e-4)


@pytest.mark.parametrize(("path", "is_chat"), [(CHAT, True), (TEXT, False)])
@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_of_a_response_and_of_a_stream_has_a_risk(
    fronted: Served, path: str, is_chat: bool, n: int
) -> None:
    asked = {**(ASK if is_chat else {"prompt": "The capital"}), "n": n}
    content = fronted.fetch(path, asked)[1]
    risks = [one["clew"]["risk"] for one in content["choices"]]
    assert len(risks) == n and None not in risks and ("clew" in content) == (n == 1)
    raw = fetch_bytes(fronted, path, {**asked, "stream": True})
    *own, last = raw.decode().split("\n\n")[-2 - n : -1]
    assert last == "data: [DONE]"
    found = [json.loads(one.removeprefix("data: ")) for one in own]
    assert [one["choices"][0]["clew"]["risk"] for one in found] == pytest.approx(risks, abs=1e-4)
    added = "".join(f"{one}\n\n" for one in own).encode()
    assert raw.replace(added, b"") == b"".join(chunks([ANSWER] * n, is_chat))


def test_the_openai_client_gets_the_risk_whole_and_streamed(fronted: Served) -> None:
    client = fronted.client()
    answer = client.chat.completions.create(**ASK)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == ANSWER and 0 <= answer.clew["risk"] <= 1
    text, last = "", None
    for chunk in client.chat.completions.create(**STREAM):  # type: ignore[call-overload]
        for choice in chunk.choices:
            text += choice.delta.content or ""
            last = (choice.model_extra or {}).get("clew", last)
    assert text == ANSWER and last is not None and last["state"] == "checked"


def test_a_response_of_the_responses_api_keeps_its_bytes_and_gets_a_risk(fronted: Served) -> None:
    asked = {"model": "any", "input": QUESTION[0]["content"]}
    content, (_, _, headers) = fronted.fetch(RESPONSES, asked)[1], fronted.fetch(RESPONSES, asked)
    assert content["clew"]["state"] == "checked" == headers["X-Clew-State"]
    chat = fronted.fetch(CHAT, ASK)[1]["clew"]["risk"]
    assert content["clew"]["risk"] == pytest.approx(chat, abs=1e-4)
    assert CLEW.sub(b"", fetch_bytes(fronted, RESPONSES, asked)) == response("completed")
    raw = fetch_bytes(fronted, RESPONSES, {**asked, "stream": True})
    passed = b"".join(response_events(response("completed")))
    assert raw.startswith(passed)
    name, data = raw.removeprefix(passed).decode().removesuffix("\n\n").split("\n")
    last = json.loads(data.removeprefix("data: "))
    assert name == "event: clew.risk" and last["sequence_number"] == 100
    assert last["clew"]["risk"] == pytest.approx(chat, abs=1e-4)


def test_the_openai_client_gets_the_risk_of_responses(fronted: Served) -> None:
    client = fronted.client().responses
    asked: dict[str, Any] = {"model": "any", "input": QUESTION}
    whole = client.create(**asked)
    assert whole.output_text == ANSWER and 0 <= (whole.model_extra or {})["clew"]["risk"] <= 1
    *_, completed, last = client.create(**asked, stream=True)
    assert completed.type == "response.completed" and completed.response.output_text == ANSWER
    assert last.type == "clew.risk" and last.clew["state"] == "checked"
    with client.stream(**asked) as stream:
        kinds = [one.type for one in stream]
        assert stream.get_final_response().output_text == ANSWER
    assert kinds[-1] == "clew.risk"


def test_langchain_reads_responses_through_clew(fronted: Served) -> None:
    openai = pytest.importorskip("langchain_openai")
    options = {"base_url": f"{fronted.address}v1", "api_key": "none", "model": "any"}
    chat = openai.ChatOpenAI(**options, use_responses_api=True)
    assert chat.invoke("What is the capital of France?").text == ANSWER
    assert "".join(one.text for one in chat.stream("What is it?")) == ANSWER


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_0"}, "what only the upstream has"),
        ({"conversation": "conv_0"}, "what only the upstream has"),
        ({"tools": [{"type": "function", "name": "f"}]}, "calls tools"),
        ({"status": "incomplete"}, "cut off"),
        ({"status": "failed"}, "canceled"),
        ({"input": [{"type": "image_generation_call"}]}, "the request cannot be read"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "cannot be read"),
        ({"input": 5}, "it has no messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_responses_that_cannot_be_checked_pass_as_they_are(
    fronted: Served, fields: dict[str, Any], reason: str, stream: bool
) -> None:
    asked = {"input": "Which capital?", "stream": stream, **fields}
    raw = fetch_bytes(fronted, RESPONSES, asked)
    whole = response(fields.get("status", "completed"), calls="tools" in fields)
    found = json.loads(raw.decode().rpartition("data: ")[2])["clew"]
    assert found["state"] == "unavailable" and reason in found["reason"] and found["risk"] is None
    expected = b"".join(response_events(whole)) if stream else whole
    assert raw.startswith(expected) if stream else CLEW.sub(b"", raw) == expected


def test_a_response_that_is_not_there_yet_has_no_answer(fronted: Served) -> None:
    asked = {"input": "Which capital?", "background": True, "status": "queued"}
    assert fetch_bytes(fronted, RESPONSES, asked) == response("queued")
    assert fronted.fetch(RESPONSES, asked)[2]["X-Clew-State"] == "unavailable"


def test_conversations_of_the_responses_api_are_read_as_those_of_a_chat() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What?"}]},
        *({"type": "reasoning", "summary": []}, call),
        {"type": "function_call_output", "call_id": "c", "output": "Paris"},
    ]
    found = read_messages(read_input({"instructions": "Be brief.", "input": given}))
    assert [one["role"] for one in found] == ["system", "user", "assistant", "tool"]
    assert [one["content"] for one in found] == ["Be brief.", "What?", "", "Paris"]


def test_a_request_that_comes_back_ends_in_one_error(session: Session) -> None:
    class Forwarding(Handler):
        """What stands between: it passes requests on to `target`, with their headers."""

        target = ""

        def do_POST(self) -> None:
            body = self._see()
            found = self.server.seen[-1]  # type: ignore[attr-defined]
            headers = {**found[2], "Host": "127.0.0.1"}
            sent = urllib.request.Request(f"{Forwarding.target}{CHAT}", body, headers)
            with suppress(urllib.error.HTTPError), urllib.request.urlopen(sent, timeout=60):
                return
            self.answer(b"{}", status=508)

    with running(Forwarding) as between, in_front(session, between.url) as inner:
        with in_front(session, f"{inner.address}v1") as outer:
            Forwarding.target = outer.address
            status, _, _ = outer.fetch(CHAT, ASK)
            assert status == 508 and len(between.seen) == 1
            assert len(between.seen[0][2]["X-Clew-Via"].split(",")) == 2
        names = ", ".join(map(str, range(8)))
        status, content, _ = inner.fetch(CHAT, ASK, **{"X-Clew-Via": names})
        assert (status, content["error"]["code"]) == (508, "upstream_loop")


def test_one_clew_in_front_of_another_works(fronted: Served) -> None:
    with in_front(fronted.session, f"{fronted.address}v1") as outer:
        content = outer.fetch(CHAT, ASK)[1]
    assert content["clew"]["state"] == "checked"


def test_langchain_reads_the_risk_from_headers_and_streamed_log_probabilities(
    fronted: Served,
) -> None:
    openai = pytest.importorskip("langchain_openai")
    options = {"base_url": f"{fronted.address}v1", "api_key": "none", "model": "any"}
    chat = openai.ChatOpenAI(**options, include_response_headers=True)
    headers = chat.invoke("What is the capital of France?").response_metadata["headers"]
    assert 0 <= float(headers["x-clew-risk"]) <= 1
    streaming = openai.ChatOpenAI(**options, logprobs=True)
    told = [one.response_metadata.get("logprobs") for one in streaming.stream("Which capital?")]
    assert [one["clew"]["state"] for one in told if one and "clew" in one] == ["checked"]


def test_requests_arrive_unchanged_without_headers_of_this_server(
    fronted: Served, upstream: Running
) -> None:
    body = b'{"model": "\\u00e9", "messages" : [{"role":"user","content":[{"type":"image_url"}]}],'
    body += b' "tools":[], "response_format": {"type":"json_object"}, "unknown": 1.50}'
    status, content, _ = fronted.fetch(
        f"{CHAT}?version=2%2F1", body, Cookie="a=b", **{"X-Own": "1"}
    )
    method, path, headers, sent = upstream.seen[-1]
    assert (method, path, sent) == ("POST", "/v1/chat/completions?version=2%2F1", body)
    assert headers["X-Own"] == "1" and headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in headers and headers["Host"] in upstream.url
    assert status == 200 and "only parts of type text" in content["clew"]["reason"]
    assert content["clew"]["state"] == "unavailable" and content["clew"]["risk"] is None


def test_other_paths_below_v1_pass_and_none_outside(fronted: Served, upstream: Running) -> None:
    assert fronted.fetch("v1/models/a%2Fb?x=1")[1]["path"] == "/v1/models/a%2Fb?x=1"
    assert fronted.fetch("v1/embeddings", {"input": ["a"]})[1] == {"input": ["a"]}
    before = len(upstream.seen)
    climbing = (
        "v1/../admin",
        "v1/%2e%2e/admin",
        "v1/a/..%2f..%2fb",
        "v1/%252e%252e/admin",
        "v1/..",
    )
    for path in (*climbing, "admin", "v2/models", "v1/a/..%5cb"):
        assert raw_status(fronted, path) == 404, path
    for own in ("v1/score", "v1/check", "v1/feedback"):
        assert raw_status(fronted, own) == 404
    assert len(upstream.seen) == before
    status, content, _ = fronted.fetch("v1/moved")
    assert (status, content["error"]["code"]) == (502, "upstream_redirects")


def raw_status(served: Served, path: str) -> int:
    """Of a GET whose path is not tidied by a client."""
    host, port = re.findall(r"//(.*):(\d+)/", served.address)[0]
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        return int(connection.makefile("rb").readline().split()[1])


def test_keys_of_this_server_never_go_upstream(session: Session, upstream: Running) -> None:
    own = "sk-of-clew-itself"
    bearer = {"Authorization": f"Bearer {own}"}
    for key in ("sk-of-the-upstream", None):
        with in_front(session, upstream.url, keys=[own], key=key) as served:
            assert served.fetch(CHAT, ASK)[0] == 401
            assert served.fetch(CHAT, ASK, **bearer)[0] == 200
            sent = upstream.seen[-1][2]
            assert sent.get("Authorization") == (key and f"Bearer {key}")
            assert own not in str(upstream.seen[-1])
    with in_front(session, upstream.url) as served:
        served.fetch(CHAT, ASK, Authorization="Bearer of-the-client")
        assert upstream.seen[-1][2]["Authorization"] == "Bearer of-the-client"


def test_errors_of_the_upstream_reach_the_client_as_they_are(fronted: Served) -> None:
    status, content, headers = fronted.fetch(CHAT, {**ASK, "model": "unknown"})
    assert (status, content) == (404, {"error": {"message": "no such model"}})
    assert "X-Clew-State" not in headers


def test_what_cannot_be_checked_says_why(fronted: Served) -> None:
    cases = ({"ends": "length"}, {"texts": [""]}, {"messages": [{"role": "robot", "content": "a"}]})
    for case, word in zip(cases, ("cut off", "empty", "role"), strict=True):
        _, content, headers = fronted.fetch(CHAT, {**ASK, **case})
        assert content["clew"]["state"] == headers["X-Clew-State"] == "unavailable"
        assert word in content["clew"]["reason"] and "X-Clew-Risk" not in headers
        last = events(fronted.fetch(CHAT, {**STREAM, **case})[1])[-1]["clew"]
        assert last["state"] == "unavailable" and word in last["reason"]


def test_answers_flow_when_the_check_is_slow_or_fails(
    session: Session, upstream: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is really busy; then it really fails."""
    released = threading.Event()
    with in_front(session, upstream.url, check_seconds=0.1) as served:
        busy = threading.Thread(target=session.call, args=(released.wait,))
        busy.start()
        try:
            content = served.fetch(CHAT, ASK)[1]
            last = events(served.fetch(CHAT, STREAM)[1])[-1]
        finally:
            released.set()
            busy.join()
        for found in (content, last):
            assert found["clew"]["state"] == "unavailable" and "0.1 s" in found["clew"]["reason"]
        assert content["choices"][0]["message"]["content"] == ANSWER
    with in_front(session, upstream.url) as served:
        monkeypatch.setattr(session, "encoder", None)
        reason = served.fetch(CHAT, ASK)[1]["clew"]["reason"]
        assert "failed" in reason


def test_sentences_are_checked_while_the_stream_goes_on(session: Session) -> None:
    turn = threading.Semaphore(0)

    class Waiting(Handler):
        def pause(self) -> None:
            turn.acquire(timeout=60)

    with (
        running(Waiting) as upstream,
        in_front(session, upstream.url, check="sentence") as served,
        served.client().chat.completions.create(**STREAM) as stream,  # type: ignore[call-overload]
    ):
        found: list[Any] = []
        text = ""
        turn.release(6)
        for number, chunk in enumerate(stream):
            if number == 5:  # the first sentence is complete
                served.wait_until(lambda: 'endpoint="upstream"' in served.fetch("metrics")[1])
            for choice in chunk.choices:
                text += choice.delta.content or ""
                found += [one] if (one := (choice.model_extra or {}).get("clew")) else []
            turn.release()
        *sentences, last = found
        told = [one for clew in sentences for one in clew["sentences"]]
        assert told and told[0]["text"] == "Paris is the capital." and "risk" in told[0]
        assert all(text[one["start"] : one["end"]] == one["text"] for one in told)
        assert text == ANSWER and last["state"] == "checked"


def test_answers_with_a_high_risk_are_withheld_from_responses_and_streams(
    session: Session, upstream: Running
) -> None:
    """The words of a withheld answer are nowhere; others keep their bytes."""
    texts = [ANSWER, "a b", "the the the", "Yes."]
    asked = {**ASK, "n": 4, "texts": texts}
    with in_front(session, upstream.url, on_risk="withhold") as served:
        whole_one = served.fetch(CHAT, asked)[1]
        streamed = served.fetch(CHAT, {**asked, "stream": True})[1]
        cut_off = served.fetch(CHAT, {**ASK, "ends": "length"})[1]
        stream = events(served.fetch(CHAT, {**STREAM, "ends": "length"})[1])
        assert raw_status(served, "v1/responses/resp_1") == 404
        assert served.fetch("v1/models")[0] == 200
    for choice, text in zip(whole_one["choices"], texts, strict=True):
        withheld = choice["clew"]["risk_level"] != "low"
        assert choice["clew"]["withheld"] == withheld
        assert choice["message"]["content"] == ("" if withheld else text)
        parts = [
            one["delta"].get("content", "")
            for event in events(streamed)
            for one in event["choices"]
            if one["index"] == choice["index"]
        ]
        assert "".join(parts) == ("" if withheld else text)
    assert cut_off["choices"][0]["finish_reason"] == "content_filter"
    assert "not checked" in cut_off["choices"][0]["message"]["refusal"]
    assert "Paris" not in json.dumps([cut_off, stream]) and cut_off["usage"]["total_tokens"] == 19
    assert stream[-1]["choices"][0]["finish_reason"] == "content_filter"


def test_a_replacement_takes_the_place_of_an_unchecked_answer(
    session: Session, upstream: Running
) -> None:
    asked = {"prompt": "The capital", "ends": "length"}
    policy = {"on_risk": "replace", "replacement": "Ask a person."}
    with in_front(session, upstream.url, **policy) as served:
        choice = served.fetch(TEXT, asked)[1]["choices"][0]
        stream = events(served.fetch(TEXT, {**asked, "stream": True})[1])
    assert (choice["text"], choice["finish_reason"]) == ("Ask a person.", "stop")
    assert "".join(one["text"] for e in stream for one in e["choices"]) == "Ask a person."


def test_people_label_answers_of_the_upstream_by_its_id(
    detector_folder: Path, chat_model: Any, upstream: Running, tmp_path: Path
) -> None:
    feedback = Feedback(tmp_path / "labels.jsonl", detector="a")
    with (
        Session.open(detector_folder, model=chat_model, vectors=True) as session,
        in_front(session, upstream.url, feedback=feedback) as served,
    ):
        served.fetch(CHAT, ASK)
        said = {"id": "chatcmpl-1", "label": "correct"}
        status, content, _ = served.fetch("v1/feedback", said)
        assert status == 200 and content["labeled_answers"] == 1


SSE = "200 OK\r\nContent-Type: text/event-stream"
JSON = "200 OK\r\nContent-Type: application/json"
CHUNK = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Paris."}}]}\n\n'


@pytest.mark.parametrize(
    ("speak", "expected"),
    [
        (say("200 OK\r\n" + "X-A: b\r\n" * 100_000 + "X-B: c"), (502, "upstream_failed")),
        (say("nonsense"), (502, "upstream_failed")),
        (lambda connection: connection.close(), (502, "upstream_failed")),
        (say(f"{JSON}\r\nContent-Length: 500", b'{"choices": ['), (502, "upstream_failed")),
        (say(JSON, b'{"choices": ['), (200, "unavailable")),
        (say(JSON, b'{"choices": [{"index": -5}]}'), (200, "unavailable")),
        (say(JSON, b'{"choices": [{"index": 1e99}, null]}'), (200, "unavailable")),
        (say(JSON, b"[" * 100_000), (200, "unavailable")),
        (say(JSON, b"\xff\xfe"), (200, "unavailable")),
        (say(JSON, b'{"a": "' + b"x" * (1 << 25) + b'"}'), (200, "unavailable")),
        (say(f"{JSON}\r\nContent-Encoding: gzip", b"\x1f\x8b"), (200, "unavailable")),
        (say(JSON, b'{"choices":[{"message":{"content":"\\ud800"}}]}'), (200, "unavailable")),
    ],
)
def test_a_hostile_response_is_an_error_or_passes_unchecked(
    session: Session, speak: Callable[[socket.socket], None], expected: tuple[int, str]
) -> None:
    with raw_upstream(speak) as url, in_front(session, url) as served:
        head, body = post_raw(served, ASK)
        state = re.search(rb"x-clew-state: (\w+)", head)
        code = state[1].decode() if state else json.loads(body)["error"]["code"]
        assert (int(head.split()[1]), code) == expected
        assert served.fetch("healthz")[0] == 200


def post_raw(served: Served, asked: Any) -> tuple[bytes, bytes]:
    """The head and the body of a response, whatever they are."""
    host, port = re.findall(r"//(.*):(\d+)/", served.address)[0]
    body = json.dumps(asked).encode()
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST /{CHAT} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        found = connection.makefile("rb").read()
    first, _, rest = found.partition(b"\r\n\r\n")
    return first, rest


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (CHUNK + b"data: {broken\n\n" + CHUNK + b"data: [DONE]\n\n", "not one of OpenAI's API"),
        (CHUNK + b"data: " + b"x" * (1 << 21) + b"\n\n" + b"data: [DONE]\n\n", "bytes"),
        (CHUNK + b"data: [DONE]", "canceled"),
        (CHUNK, "canceled"),
        (CHUNK + b": a comment\r\n\r\nevent: a\nid: 5\n\n" + b"data: [DONE]\r\n\r\n", "canceled"),
        (CHUNK.replace(b"0", b"1000000000") + b"data: [DONE]\n\n", None),
        (CHUNK + CHUNK.replace(b"Paris.", b"x" * 900_000) * 2 + b"data: [DONE]\n\n", "characters"),
    ],
)
def test_a_hostile_stream_passes_and_says_that_it_was_not_checked(
    session: Session, said: bytes, state: str | None
) -> None:
    with raw_upstream(say(SSE, said)) as url, in_front(session, url) as served:
        raw = fetch_bytes(served, CHAT, STREAM)
    passed = said.partition(b"data: [DONE]")[0]
    assert raw.startswith(passed)
    added = raw.removeprefix(passed).decode()
    assert (added.count('"unavailable"') > 0) == (state is not None)
    assert state is None or state in added
    assert added.endswith("data: [DONE]\n\n") == (b"[DONE]" in said)


def test_withholding_delivers_nothing_of_a_hostile_response(session: Session) -> None:
    for head, said in ((SSE, CHUNK + b"data: {broken\n\n"), (JSON, b'"Paris'), (SSE, CHUNK)):
        with (
            raw_upstream(say(head, said)) as url,
            in_front(session, url, on_risk="withhold") as served,
        ):
            assert "Paris" not in str(served.fetch(CHAT, STREAM)[1])


def test_a_client_that_leaves_ends_the_request_upstream(session: Session) -> None:
    arrived, gone = threading.Event(), threading.Event()

    def speak(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 {SSE}\r\nConnection: close\r\n\r\n".encode() + CHUNK)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
        gone.set()

    with raw_upstream(speak) as url, in_front(session, url) as served:
        with served.client().chat.completions.create(**STREAM) as stream:  # type: ignore[call-overload]
            next(iter(stream))
        assert gone.wait(60)
        gone.clear()

    def silent(connection: socket.socket) -> None:
        arrived.set()
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
        gone.set()

    with raw_upstream(silent) as url, in_front(session, url) as served:
        host, port = re.findall(r"//(.*):(\d+)/", served.address)[0]
        with socket.create_connection((host, int(port))) as connection:
            head = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n"
            connection.sendall(head.encode())
            assert arrived.wait(60)
        assert gone.wait(60)


def test_a_request_ends_when_its_time_is_up(session: Session) -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(f"HTTP/1.1 {SSE}\r\nConnection: close\r\n\r\n".encode() + CHUNK)
        connection.recv(1)

    with raw_upstream(speak) as url, in_front(session, url, request_seconds=0.3) as served:
        last = events(served.fetch(CHAT, STREAM)[1])[-1]
        assert last["error"]["code"] == "timeout"


def test_64_streams_at_once_while_the_upstream_is_killed_and_restarted(session: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "tests.hallucination.live.service.upstreams", str(port)]

    def start(served: Served) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(words)
        served.wait_until(lambda: served.fetch("v1/models")[0] == 200)
        return process

    def ask(_: int) -> str:
        return str(served.fetch(CHAT, STREAM)[1])

    with (
        in_front(session, f"http://127.0.0.1:{port}/v1") as served,
        ThreadPoolExecutor(64) as pool,
    ):
        assert served.fetch("v1/models")[0] == 502
        process = start(served)
        try:
            whole_ones = [events(one) for one in pool.map(ask, range(64))]
            assert all(one[-1]["clew"]["state"] == "checked" for one in whole_ones)
            texts = [
                "".join(c["delta"].get("content", "") for event in one for c in event["choices"])
                for one in whole_ones
            ]
            assert texts == [ANSWER] * 64
            asked = [pool.submit(ask, number) for number in range(64)]
            served.wait_until(lambda: served.ending.active >= 32)
            process.send_signal(signal.SIGKILL)
            process.wait()
            for one in asked:  # each is whole, or says that the upstream has failed
                text = one.result()
                assert '"checked"' in text or "upstream_failed" in text
            process = start(served)
            assert all(events(one)[-1]["clew"]["risk"] for one in pool.map(ask, range(64)))
        finally:
            process.kill()
            process.wait()


SOURCE = "Items can be returned within 30 days of delivery."


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "user", "content": f"<context>{SOURCE}</context>\nHow long?"}]},
        {"messages": [{"role": "user", "content": f"Context: {SOURCE}\n\nQuestion: How long?"}]},
        {
            "messages": [
                {"role": "system", "content": f"Be brief.\n## Sources:\n{SOURCE}\n"},
                {"role": "user", "content": [{"type": "text", "text": "How long?"}]},
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "How long?"},
                {"role": "assistant", "content": None, "tool_calls": [{}]},
                {"role": "tool", "content": SOURCE},
            ]
        },
        {"messages": [{"role": "user", "content": "How long?"}], "documents": [{"text": SOURCE}]},
    ],
)
def test_sources_are_found_in_the_messages(asked: dict[str, Any]) -> None:
    sources, question = find_sources(PassedAnswer(asked=asked, is_chat=True, text="30 days."))
    assert [one.strip() for one in sources] == [SOURCE] and (question or "").strip() == "How long?"


def test_a_plain_question_has_no_source_and_a_long_message_is_one() -> None:
    def find(content: Any) -> tuple[str, ...]:
        asked = {"messages": [{"role": "system", "content": "Be brief. " * 90}, content]}
        return find_sources(PassedAnswer(asked=asked, is_chat=True, text="a"))[0]

    assert find({"role": "user", "content": "In which country is Tartu?"}) == ()
    long = f"Summarize: {SOURCE * 20}"
    assert find({"role": "user", "content": long}) == (long,)
    assert find(5) == find({"content": 5}) == find({"role": "user", "content": [5]}) == ()


def test_a_reader_checks_answers_of_any_server_in_one_command(
    reader_folder: Path, upstream: Running, tmp_path: Path
) -> None:
    from tests.hallucination.live.service.serving import process_serving

    words = (reader_folder, "--upstream", upstream.url, "--check-seconds", 60)
    marked = [{"role": "user", "content": f"<context>{SOURCE}</context> How long?"}]
    with process_serving(tmp_path / "log", *words) as (process, address):
        served = Served(address=address.removesuffix("v1"), session=None, ending=None)  # type: ignore[arg-type]
        found = served.fetch(CHAT, {**ASK, "messages": marked})[1]["clew"]
        assert found["state"] == "checked" and found["method"] == load_reader(reader_folder).name
        alone = served.fetch(CHAT, ASK)[1]["clew"]
        assert alone["state"] == "unavailable" and "no source" in alone["reason"]
        assert served.fetch("v1/check", {"source": SOURCE, "answer": "60."})[1]["risk"]
        assert served.fetch("v1/score", {"question": "a", "answer": "b"})[0] == 404
        assert served.fetch("")[0] == 200 and served.fetch("clew/page")[1]["upstream"]
        process.send(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"upstream": "ftp://a/v1"}, "upstream"),
        ({"upstream": "http://user:secret@a/v1"}, "upstream"),
        ({"upstream": "http://a/v1?key=secret"}, "upstream"),
        ({"upstream": "http://a/v1", "upstream_key_env": "NO_SUCH_KEY"}, "upstream_key_env"),
        ({"upstream": "http://a/v1", "max_tokens": 5}, "max_tokens"),
        ({"upstream": "http://a/v1", "check_seconds": 0}, "check_seconds"),
        ({"upstream": "http://a/v1", "check": "sentence", "on_risk": "withhold"}, "check"),
        ({"check": "sentence"}, "check"),
    ],
)
def test_settings_that_cannot_be_used_are_named(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(InputError) as error:
        clew.serve(**settings, port=0)
    assert error.value.setting == setting and "secret" not in str(error.value)
