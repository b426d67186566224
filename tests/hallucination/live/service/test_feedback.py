"""People's labels of answers over HTTP: each is kept once, with its answer's vector, whatever
happens."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.base.errors import InputError, StoreError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors.detector_folder import hash_method
from clew.hallucination.live.feedback import Feedback, read_feedback
from clew.hallucination.live.session import Session
from clew.storage.journal import Journal
from tests.hallucination.live.service.serving import QUESTION, Served, process_serving, serving

pytestmark = pytest.mark.slow

ITEM = {"question": str(QUESTION[0]["content"]), "answer": "Paris"}


@pytest.fixture(scope="session")
def vector_session(detector_folder: Path, chat_model: LoadedModel) -> Iterator[Session]:
    with Session.open(detector_folder, model=chat_model, vectors=True) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "feedback.jsonl"


Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serve(vector_session: Session, file: Path) -> Serve:
    def start(keys: tuple[str, ...] = (), **settings: Any) -> AbstractContextManager[Served]:
        feedback = Feedback(file, detector=hash_method(vector_session.detector), **settings)
        return serving(vector_session, keys=keys, feedback=feedback)

    return start


def say(served: Served, body: Any, **headers: str) -> tuple[int, Any]:
    return served.fetch("v1/feedback", body, **headers)[:2]


def score(served: Served, count: int = 1, **item: Any) -> list[str]:
    """The IDs of answers that were scored."""
    return [one["id"] for one in served.fetch("v1/score", [{**ITEM, **item}] * count)[1]]


def chat(served: Served, **options: Any) -> dict[str, Any]:
    """A response whose answers are not cut off: the model would go on, but is stopped."""
    body = {"messages": QUESTION, "max_tokens": 40}
    text = served.fetch("v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    found = served.fetch("v1/chat/completions", {**body, "stop": text[20:24], **options})[1]
    assert all(one["clew"]["state"] != "unavailable" for one in found["choices"])
    return dict(found)


def test_label_is_kept_with_the_vector_and_without_any_text(
    serve: Serve, vector_session: Session, file: Path
) -> None:
    with serve() as served:
        found = chat(served)
        status, kept = say(served, {"id": found["id"], "label": "hallucinated"})
        assert (status, kept["labeled_answers"]) == (200, 1)
        [scored] = score(served)
        assert say(served, {"id": scored, "label": "correct"})[1]["labeled_answers"] == 2
    labeled = read_feedback(file, hash_method(vector_session.detector))
    assert labeled.labels.tolist() == [1, 0] and np.isfinite(labeled.vectors).all()
    assert "France" not in file.read_text() and "Paris" not in file.read_text()
    assert found["choices"][0]["message"]["content"] not in file.read_text()


def test_label_may_be_changed_also_after_a_restart_and_the_last_one_counts(
    serve: Serve, vector_session: Session, file: Path
) -> None:
    with serve() as served:
        one, other = score(served, 2)
        for label in ("correct", "hallucinated", "hallucinated"):
            assert say(served, {"id": one, "label": label})[0] == 200
        say(served, {"id": other, "label": "hallucinated"})
    with serve() as served:
        status, kept = say(served, {"id": other, "label": "correct"})
        assert (status, kept["labeled_answers"]) == (200, 2)
    assert read_feedback(file, hash_method(vector_session.detector)).labels.tolist() == [1, 0]
    assert len(file.read_text().splitlines()) == 4, "a label that changes nothing is not written"


def test_unknown_and_expired_ids_get_404_with_a_sentence(serve: Serve) -> None:
    with serve(most_recent=2) as served:
        first, *others = score(served, 3)
        for name in ("chatcmpl-unknown", first):
            status, content = say(served, {"id": name, "label": "correct"})
            assert (status, content["error"]["code"]) == (404, "answer_not_found")
            assert "expired" in content["error"]["message"], content
        assert [say(served, {"id": one, "label": "correct"})[0] for one in others] == [200, 200]
        assert say(served, {"id": others[0], "index": 1, "label": "correct"})[0] == 404


def test_choices_are_told_apart_by_their_index(serve: Serve, file: Path) -> None:
    with serve() as served:
        found = chat(served, n=2)
        status, content = say(served, {"id": found["id"], "label": "correct"})
        assert status == 400 and "2 answers" in content["error"]["message"]
        for index, label in enumerate(("correct", "hallucinated")):
            body = {"id": found["id"], "index": index, "label": label}
            assert say(served, body)[0] == 200
    lines = map(json.loads, file.read_text().splitlines())
    assert [(one["index"], one["label"]) for one in lines] == [(0, "correct"), (1, "hallucinated")]


def test_streamed_answer_takes_feedback_by_the_id_of_its_chunks(serve: Serve) -> None:
    with serve() as served:
        stop = chat(served)["choices"][0]["message"]["content"][10:14]
        stream = served.client().chat.completions.create(
            model="tiny", messages=QUESTION, max_tokens=40, stop=stop, stream=True
        )
        [name] = {chunk.id for chunk in stream}
        assert say(served, {"id": name, "label": "hallucinated"})[0] == 200


def test_answer_that_was_not_checked_takes_no_label(serve: Serve) -> None:
    with serve() as served:
        body = {"messages": QUESTION, "max_tokens": 2}
        found = served.fetch("v1/chat/completions", body)[1]
        status, content = say(served, {"id": found["id"], "label": "correct"})
    assert status == 400 and "cut off" in content["error"]["message"]


def test_texts_and_corrections_are_kept_only_if_asked_for(serve: Serve, file: Path) -> None:
    body = {"label": "hallucinated", "corrected_answer": "Lutétia\n"}
    with serve() as served:
        status, content = say(served, {"id": score(served)[0], **body})
        assert (status, content["error"]["code"]) == (400, "answers_not_kept")
        assert "keep_answers" in content["error"]["message"] and not file.exists()
    with serve(keeps_answers=True) as served:
        [name] = score(served, context="France is large.")
        assert say(served, {"id": name, **body})[0] == 200
        assert say(served, {"id": name, **body, "label": "correct"})[0] == 400
    [line] = Journal(file).read_on()
    names = ("question", "answer", "context", "corrected_answer")
    expected = [ITEM["question"], "Paris", "France is large.", body["corrected_answer"]]
    assert [line[name] for name in names] == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (None, None),
        ([], None),
        ({"label": "correct"}, "id"),
        ({"id": "a"}, "label"),
        ({"id": 5, "label": "correct"}, "id"),
        ({"id": "a" * 201, "label": "correct"}, "id"),
        ({"id": "a", "label": "good"}, "label"),
        ({"id": "a", "label": True}, "label"),
        ({"id": "a", "label": ["correct"]}, "label"),
        ({"id": "a", "label": "correct", "index": -1}, "index"),
        ({"id": "a", "label": "correct", "index": 0.5}, "index"),
        ({"id": "a", "label": "correct", "index": 10**30}, "index"),
        ({"id": "a", "label": "hallucinated", "corrected_answer": ""}, "corrected_answer"),
        ({"id": "a", "label": "hallucinated", "corrected_answer": "a" * 20_001}, None),
        ({"id": "a", "label": "correct", "vector": [1.0]}, "vector"),
    ],
)
def test_wrong_fields_are_named(
    vector_session: Session, tmp_path: Path, body: Any, param: str | None
) -> None:
    feedback = Feedback(tmp_path / "a.jsonl", detector="a", keeps_answers=True)
    with serving(vector_session, feedback=feedback) as served:
        status, content = say(served, b"null" if body is None else body)
        is_long = isinstance(body, dict) and "corrected_answer" in body and param is None
        assert status == 400
        assert content["error"]["param"] == ("corrected_answer" if is_long else param)


def test_hostile_bodies_are_refused_and_store_nothing(serve: Serve, file: Path) -> None:
    with serve() as served:
        [name] = score(served)
        good = {"id": name, "label": "correct"}
        nan = json.dumps({**good, "index": float("nan")}).encode()
        assert say(served, nan)[0] == 400
        assert say(served, {**good, "corrected_answer": "a" * 200_000})[0] == 413
        assert say(served, b'{"id": ' + b"[" * 5000)[0] == 400
        assert say(served, json.dumps(good).encode(), **{"Content-Type": "text/plain"})[0] == 415
    assert not file.exists()


def test_feedback_needs_the_key_and_is_bounded(serve: Serve) -> None:
    key = {"Authorization": "Bearer sk-of-this-test"}
    with serve(keys=("sk-of-this-test",), most_labels=2) as served:
        names = [one["id"] for one in served.fetch("v1/score", [ITEM] * 3, **key)[1]]
        assert say(served, {"id": names[0], "label": "correct"})[0] == 401
        found = [say(served, {"id": name, "label": "correct"}, **key)[0] for name in names]
        assert found == [200, 200, 429]


def test_server_without_a_place_for_feedback_says_so(vector_session: Session) -> None:
    with serving(vector_session) as served:
        status, content = say(served, {"id": "a", "label": "correct"})
    assert status == 404 and "feedback_file" in content["error"]["message"]


def test_many_clients_lose_nothing_and_write_nothing_twice(
    serve: Serve, vector_session: Session, file: Path
) -> None:
    with serve() as served, ThreadPoolExecutor(24) as clients:
        names = score(served, 96)
        labels = ["hallucinated" if place % 3 else "correct" for place in range(96)]
        bodies = [{"id": n, "label": v} for n, v in zip(names, labels, strict=True)] * 3
        assert {found[0] for found in clients.map(lambda b: say(served, b), bodies)} == {200}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["id"]: one["label"] for one in lines} == dict(zip(names, labels, strict=True))
    assert len(lines) == 96
    assert len(read_feedback(file, hash_method(vector_session.detector)).labels) == 96


def test_every_label_that_was_confirmed_survives_kill_9(
    detector_folder: Path, chat_folder: Path, tmp_path: Path
) -> None:
    file, confirmed = tmp_path / "kept.jsonl", {}
    words = (detector_folder, "--model", chat_folder, "--feedback-file", file)

    def post(address: str, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    with process_serving(tmp_path / "log", *words) as (process, address):
        names = [one["id"] for one in post(address, "/score", [ITEM] * 200)]
        numbers = count()

        def label(name: str) -> None:
            if next(numbers) == 60:
                process.send(signal.SIGKILL)
            with_label = {"id": name, "label": "hallucinated"}
            confirmed[name] = post(address, "/feedback", with_label)["label"]

        with ThreadPoolExecutor(8) as clients:
            replies = [clients.submit(label, name) for name in names]
        assert process.wait() == -signal.SIGKILL
        assert any(one.exception() for one in replies) and len(confirmed) >= 40
    kept = {line["id"]: line["label"] for line in Journal(file).read_on()}
    assert confirmed.items() <= kept.items()
    with file.open("ab") as cut:
        cut.write(b'{"id":"a cut li')
    with process_serving(tmp_path / "log2", *words) as (_, address):
        assert post(address, "/feedback", {"id": next(iter(kept)), "label": "correct"})
    lines = list(Journal(file).read_on())
    assert [line["label"] for line in lines] == ["hallucinated"] * len(kept) + ["correct"]


def test_detector_is_adapted_to_the_feedback_also_on_unfamiliar_answers(
    serve: Serve, vector_session: Session, detector_folder: Path, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="`labeled`, or `feedback=True`"):
        clew.adapt(detector_folder, out=tmp_path / "adapted")
    with pytest.raises(InputError, match="no labels for this detector"):
        clew.adapt(detector_folder, feedback=True, out=tmp_path / "adapted")
    with serve() as served:
        items = [{"question": f"Is it {n}?", "answer": f"It is {n * 7}."} for n in range(24)]
        scored = served.fetch("v1/score", items)[1]
        assert any(one["state"] == "out_of_distribution" for one in scored)
        for place, one in enumerate(scored):
            label = "hallucinated" if place % 3 else "correct"
            assert say(served, {"id": one["id"], "label": label})[0] == 200
    result = clew.adapt(detector_folder, feedback_file=file, out=tmp_path / "adapted")
    assert (result.labels, result.hallucinated) == (24, 16)
    same = hash_method(vector_session.detector)
    assert hash_method(result.detector) == same, "its own feedback can be added to the file"
    said = {"id": "a", "index": 0, "choices": 1, "label": "correct", "corrected_answer": None}
    other = tmp_path / "other.jsonl"
    Journal(other).append({**said, "made": "", "detector": same, "vector": "AACAPw=="})
    with pytest.raises(StoreError, match="have 1 numbers"):
        clew.adapt(detector_folder, feedback_file=other, out=tmp_path / "again")


def test_file_of_another_detector_or_without_labels_is_refused(serve: Serve, file: Path) -> None:
    with pytest.raises(InputError, match="no labels"):
        read_feedback(file, "a")
    with serve() as served:
        say(served, {"id": score(served)[0], "label": "correct"})
    with pytest.raises(InputError, match="those of 1 answer are of another"):
        read_feedback(file, "a")
    file.write_text(re.sub("correct", "wrong", file.read_text()))
    with pytest.raises(StoreError, match="line 1"):
        read_feedback(file, "a")
