"""Answers that are not shown: nothing of them reaches a client, whatever it asks for."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors import load_detector
from clew.hallucination.detectors.data import Promise
from clew.hallucination.live.service.service import ServiceSettings
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import DIALOGUE, QUESTION, Served, serving

pytestmark = pytest.mark.slow

REQUESTS: dict[str, dict[str, Any]] = {
    "v1/chat/completions": {"messages": QUESTION, "logprobs": True, "top_logprobs": 3, "n": 2},
    "v1/completions": {"prompt": "The capital of France is", "logprobs": 3, "n": 2},
}


@pytest.fixture(scope="module")
def stops(served: Served) -> dict[str, list[str]]:
    """With these, answers end before they are cut off, so that they have a risk."""
    found = {}
    for path, body in REQUESTS.items():
        _, content, _ = served.fetch(path, {**body, "max_tokens": 40})
        choice = content["choices"][0]
        found[path] = [(choice.get("text") or choice["message"]["content"])[3:5]]
    return found


@contextmanager
def serving_all(
    folder: Path, model: LoadedModel, *, threshold: float, **settings: Any
) -> Iterator[Served]:
    """With a detector that knows all answers, and promises something of those below a threshold."""
    found = replace(load_detector(folder), distance=None, threshold=threshold)
    assert found.calibration is not None
    promise = Promise(
        max_wrong_shown=0.1,
        confidence=0.95,
        threshold=threshold,
        calibration=asdict(found.calibration),
        answers=100,
        not_familiar=0,
        unchecked=0,
        shown=100,
        wrong_shown=0,
        share_shown=1.0,
        share_interval=(0.9, 1.0),
    )
    kept = replace(found.kept, calibrated={"promise": promise.to_dict()})
    with ExitStack() as stack:
        session = stack.enter_context(Session(model, replace(found, origin=kept)))
        yield stack.enter_context(serving(session, **settings))


def texts_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(texts_in(one) for one in (*value, *value.values())), set())
    if isinstance(value, list):
        return set().union(*map(texts_in, value), set())
    return {value} if isinstance(value, str) else set()


def read_events(text: str) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in text.split("\n\n") if line)
    return [json.loads(line) for line in lines if line != "[DONE]"]


def ask(served: Served, path: str, stop: list[str], *, stream: bool) -> list[Any]:
    """The reply, or all events of a stream."""
    more = {"max_tokens": 40, "stop": stop, "stream": stream}
    status, content, _ = served.fetch(path, {**REQUESTS[path], **more})
    assert status == 200, content
    return read_events(content) if stream else [content]


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_withheld_answer_reaches_the_client(
    detector_folder: Path,
    chat_model: LoadedModel,
    stops: dict[str, list[str]],
    path: str,
    stream: bool,
) -> None:
    place = (detector_folder, chat_model)
    with serving_all(*place, threshold=0.0) as served:
        [whole] = ask(served, path, stops[path], stream=False)
    with serving_all(*place, threshold=0.0, on_risk="withhold") as served:
        found = ask(served, path, stops[path], stream=stream)
    answers = [one.get("text") or one["message"]["content"] for one in whole["choices"]]
    tokens = {one["token"] for choice in whole["choices"] for one in choice["clew"]["tokens"]}
    assert all(answers) and tokens and not whole["choices"][0]["clew"]["withheld"]
    assert not texts_in(found) & ({*answers, *tokens} - {""})
    ends = [one for event in found for one in event["choices"] if one["finish_reason"]]
    assert [one["finish_reason"] for one in ends] == ["content_filter"] * 2
    for one in ends:
        assert one["clew"]["withheld"] and one["clew"]["tokens"] == []
        assert one["clew"]["risk_level"] == "high" and one["clew"]["promise"] is None
        assert not (one["logprobs"].get("content") or one["logprobs"].get("tokens"))
    if path == "v1/chat/completions":
        said = [(one.get("message") or one["delta"])["refusal"] for one in ends]
        assert said == ["The answer was withheld: high risk."] * 2


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
def test_replacement_takes_the_place_of_the_answer(
    detector_folder: Path,
    chat_model: LoadedModel,
    stops: dict[str, list[str]],
    path: str,
    stream: bool,
) -> None:
    policy = {"on_risk": "replace", "replacement": "Ask a person."}
    with serving_all(detector_folder, chat_model, threshold=0.0, **policy) as served:
        found = ask(served, path, stops[path], stream=stream)
    said = ["", ""]
    for one in (one for event in found for one in event["choices"]):
        inner = one.get("message") or one.get("delta") or {"content": one.get("text")}
        said[one["index"]] += inner.get("content") or ""
        assert one["finish_reason"] in (None, "stop")
    assert said == ["Ask a person."] * 2


@pytest.mark.parametrize("path", REQUESTS)
def test_stream_of_shown_answers_is_the_answer_and_carries_the_promise(
    detector_folder: Path, chat_model: LoadedModel, stops: dict[str, list[str]], path: str
) -> None:
    with serving_all(detector_folder, chat_model, threshold=1.0, on_risk="withhold") as served:
        [whole] = ask(served, path, stops[path], stream=False)
        events = ask(served, path, stops[path], stream=True)
    said = ["", ""]
    for one in (one for event in events for one in event["choices"]):
        said[one["index"]] += one.get("text") or one.get("delta", {}).get("content") or ""
    assert said == [one.get("text") or one["message"]["content"] for one in whole["choices"]]
    # Only the detector's own prompt is what it was calibrated on.
    promised = {"max_wrong_shown": 0.1, "confidence": 0.95} if "chat" in path else None
    assert [one["clew"]["promise"] for one in whole["choices"]] == [promised] * 2


def test_other_traffic_gets_no_promise(
    detector_folder: Path, chat_model: LoadedModel, stops: dict[str, list[str]]
) -> None:
    path = "v1/chat/completions"
    with serving_all(detector_folder, chat_model, threshold=1.0) as served:
        _, found, _ = served.fetch(path, {"messages": DIALOGUE})
        assert found["clew"]["promise"] is None
        # All of these end at the limit of tokens, so none has a risk.
        for _ in range(4):
            served.fetch(path, {"messages": QUESTION, "max_tokens": 1, "n": 16})
        _, found, _ = served.fetch(path, {"messages": QUESTION, "stop": stops[path]})
        assert found["clew"]["risk_level"] == "low" and found["clew"]["promise"] is None


def test_scored_answers_say_whether_they_would_be_withheld(
    detector_folder: Path, chat_model: LoadedModel
) -> None:
    """Who asks has the answer already."""
    with serving_all(detector_folder, chat_model, threshold=0.0, on_risk="withhold") as served:
        item = {"question": "Who?", "answer": "The capital of France"}
        _, found, _ = served.fetch("v1/score", item)
    assert found["withheld"] and found["tokens"]


def test_replacement_without_a_use_is_refused() -> None:
    for settings in ({"on_risk": "replace"}, {"replacement": "Ask a person."}):
        with pytest.raises(InputError, match="replacement"):
            ServiceSettings(**settings)  # type: ignore[arg-type]
