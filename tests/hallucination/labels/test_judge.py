"""A judge behind a real local URL: replies, failures, retries, and resuming."""

import json
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.labels.chat import ChatConfig, JudgeError
from clew.hallucination.labels.judge import parse_reply
from clew.hallucination.labels.label import LabelResult, label_store
from tests.hallucination.labels.judge_server import Reply, judge_server
from tests.hallucination.labels.text_stores import trace_row, write_text_store

SECRET = "sk-very-secret"
Label = Callable[..., LabelResult]


@pytest.fixture
def label(tmp_path: Path) -> Label:
    """Labels six answers, one of them empty, with the judge at a URL."""
    texts = ["Rome", "It is Oslo", "", "Bonn", "Bern", "Paris"]
    rows = [trace_row(i, text, ["Rome", "Roma"]) for i, text in enumerate(texts)]
    store = write_text_store(tmp_path / "store", rows)

    def call(url: str, **changes: Any) -> LabelResult:
        settings: dict[str, Any] = {"first_wait_seconds": 0.01, "attempts": 3} | changes
        judge = ChatConfig(url=url, model=settings.pop("model", "grader"), **settings)
        return label_store(store, tmp_path / "scores.csv", judge=judge)

    return call


def says_rome(graded: dict[str, Any], _: int) -> Reply:
    return Reply(content="YES" if "Rome" in graded["answer_to_grade"] else " no. ")


def test_every_answer_but_the_empty_one_is_judged_once(label: Label, tmp_path: Path) -> None:
    with judge_server(says_rome) as server:
        result = label(server.url, key=SECRET)
        assert [row.score for row in result.rows] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        assert {row.method for row in result.rows} == {"judge grader"}
        assert len(server.asked) == 5
        assert set(server.keys) == {f"Bearer {SECRET}"}
        assert not label(server.url + "/").written
        assert len(server.asked) == 5, "judged answers are not asked about again"
    written = "".join(path.read_text() for path in tmp_path.glob("scores.csv*"))
    assert SECRET not in written


def test_another_judge_model_starts_over(label: Label, tmp_path: Path) -> None:
    with judge_server(says_rome) as server:
        label(server.url)
        (tmp_path / "scores.csv").unlink()
        label(server.url, model="other")
        assert [body["model"] for body in server.asked].count("other") == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble",
    [
        Reply(status=500),
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(status=503, headers={"Retry-After": format_datetime(datetime.now(UTC))}),
        Reply(status=429, headers={"Retry-After": "soon"}),
        Reply(body="{not json"),
        Reply(body='{"choices": []}'),
        Reply(content=None),
        Reply(content="Well, it depends."),
    ],
    ids=lambda reply: f"{reply.status} {reply.body or reply.content}",
)
def test_temporary_failures_lose_no_answer(label: Label, trouble: Reply) -> None:
    def answer(graded: dict[str, Any], before: int) -> Reply:
        return trouble if before == 0 else says_rome(graded, before)

    with judge_server(answer) as server:
        assert [row.score for row in label(server.url).rows] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_temperature_is_omitted_for_models_that_reject_it(label: Label) -> None:
    def answer(graded: dict[str, Any], before: int) -> Reply:
        if "temperature" in graded["body"]:
            return Reply(status=400, body='{"error": "temperature must be 1"}')
        return says_rome(graded, before)

    with judge_server(answer) as server:
        assert label(server.url).hallucinated == 5


@pytest.mark.slow
def test_slow_reply_does_not_block_the_others(tmp_path: Path) -> None:
    rows = [trace_row(i, f"answer {i}", ["Rome"]) for i in range(60)]
    store = write_text_store(tmp_path / "store", rows)
    others_came = threading.Event()

    def answer(graded: dict[str, Any], _: int) -> Reply:
        if graded["answer_to_grade"] == "answer 0":
            return Reply(content="YES" if others_came.wait(60) else "NO")
        if graded["answer_to_grade"] == "answer 59":
            others_came.set()
        return Reply(content="NO")

    with judge_server(answer) as server:
        judge = ChatConfig(url=server.url, model="grader", threads=2)
        result = label_store(store, tmp_path / "scores.csv", judge=judge)
    assert result.rows[0].score == 1.0, "the others are asked while the first is pending"


def test_retry_after_is_respected(label: Label, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("threading.Event.wait", waiting_notes(waits))

    def answer(graded: dict[str, Any], before: int) -> Reply:
        busy = graded["answer_to_grade"] == "Rome" and before == 0
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=200))
        return Reply(status=429, headers={"Retry-After": later}) if busy else Reply()

    with judge_server(answer) as server:
        label(server.url)
    assert any(150 < seconds <= 200 for seconds in waits)


def waiting_notes(waits: list[float]) -> Callable[..., bool]:
    """Replaces Event.wait: long waits are recorded, not waited for."""
    import threading

    original = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and timeout > 100:
            waits.append(timeout)
            return False
        return original(event, timeout)

    return wait


def test_retry_after_of_an_hour_is_an_error(label: Label) -> None:
    def answer(*_: object) -> Reply:
        return Reply(status=429, headers={"Retry-After": "3600"})

    with judge_server(answer) as server, pytest.raises(JudgeError, match="asks to wait 3,600 s"):
        label(server.url)


def test_unusable_reply_names_the_question_and_keeps_earlier_judgments(
    label: Label, tmp_path: Path
) -> None:
    def answer(graded: dict[str, Any], before: int) -> Reply:
        garbage = graded["answer_to_grade"] == "Bern"
        return Reply(content="Let me think") if garbage else says_rome(graded, before)

    with judge_server(answer) as server:
        with pytest.raises(JudgeError, match=r"question q4: .* 'Let me think' 3 times.*judged\.js"):
            label(server.url, threads=1)
        assert not (tmp_path / "scores.csv").exists()
    with judge_server(says_rome) as server:  # another: what was sent last may reach the first late
        assert label(server.url).hallucinated == 5
        assert 1 <= len(server.asked) <= 2, "only missing judgments are requested"


def test_partially_written_judgment_is_requested_again(label: Label, tmp_path: Path) -> None:
    with judge_server(says_rome) as server:
        label(server.url)
        side = tmp_path / "scores.csv.judged.jsonl"
        side.write_bytes(side.read_bytes()[:-20])
        assert not label(server.url).written
        assert len(server.asked) == 6
        assert not label(server.url).written
        assert len(server.asked) == 6
    assert len([line for line in side.read_text().splitlines() if is_json(line)]) == 5


def is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.slow
def test_hanging_server_times_out(label: Label) -> None:
    with (
        judge_server(lambda *_: Reply(hangs=True)) as server,
        pytest.raises(JudgeError, match="after 2 attempts: it did not reply within 0.2"),
    ):
        label(server.url, timeout_seconds=0.2, attempts=2)


def test_error_for_a_refused_connection_says_what_to_check(label: Label) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        JudgeError, match="no usable reply .* the connection failed .*: check `judge_url`"
    ):
        label(f"http://127.0.0.1:{port}/v1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=401, body=f"bad key {SECRET}"), r"401 \(bad key \*\*\*\): .* MY_KEY"),
        (Reply(status=404, body="no model `grader` here"), r"404 \(no model 'grader' here\): "),
        (
            Reply(status=404, body="no such model"),
            r"404 \(no such model\): .*`judge_model='grader'`",
        ),
        (Reply(status=308, headers={"Location": "https://x/v1"}), "308 .moved to https://x/v1"),
    ],
)
def test_wrong_key_or_url_fails_immediately(label: Label, reply: Reply, message: str) -> None:
    with judge_server(lambda *_: reply) as server:
        with pytest.raises(InputError, match=message) as caught:
            label(server.url, key=SECRET, key_name="MY_KEY", threads=1)
        assert len(server.asked) <= 3
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x/v1", "http://u:p@x/v1", "http://["])
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(InputError, match="the judge.s URL as http://host") as caught:
        ChatConfig(url=url, model="m")
    assert "u:p" not in str(caught.value)


def test_key_is_not_in_the_printed_settings() -> None:
    assert SECRET not in repr(ChatConfig(url="http://x", model="m", key=SECRET))


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("YES", 1.0),
        ("no", 0.0),
        ("**Yes.**", 1.0),
        ("<think>NO? hm</think>\nYES", 1.0),
        ("0.75", 0.75),
        (".5", 0.5),
        ("1", 1.0),
        ("1.0", 1.0),
        ("10", None),
        ("-1", None),
        ("1.5", None),
        ("YES and NO", None),
        ("", None),
        ("not sure", None),
    ],
)
def test_replies_are_read_strictly(reply: str, score: float | None) -> None:
    assert parse_reply(reply) == score
