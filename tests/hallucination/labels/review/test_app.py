"""The server of the review page: its states, wrong requests, and what it does not serve."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clew.hallucination.labels.review import LabelReview
from clew.storage.text_files import read_csv
from tests.hallucination.labels.review.conftest import Served

pytestmark = pytest.mark.slow


def fetch(address: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(address, data, sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def decide(served: Served, question: int, action: str) -> tuple[int, dict[str, Any]]:
    body = {"question": question, "action": action}
    status, content = fetch(f"{served.address}answer", body)
    return status, json.loads(content)


def test_decisions_arrive_in_the_file(served: Served, scores: Path) -> None:
    state = json.loads(fetch(f"{served.address}state")[1])
    assert (state["place"], state["total"], state["doubtful"]) == (0, 5, 3)
    assert state["answer"]["answer"] == "Rome and Oslo"
    assert state["answer"]["reason"] == "one of several"
    status, state = decide(served, 0, "correct")
    assert (status, state["message"]) == (200, "Saved: correct (was hallucinated)")
    assert read_csv(scores)[1]["correction"] == "correct"
    assert decide(served, 1, "undo")[1]["place"] == 0
    assert read_csv(scores)[1]["correction"] == ""


def test_key_pressed_twice_decides_once(served: Served, review: LabelReview) -> None:
    assert decide(served, 0, "skip")[0] == 200
    status, state = decide(served, 0, "refused")
    assert status == 409 and "out of date" in state["error"] and review.place == 1


@pytest.mark.parametrize("body", [{}, [], {"question": 0, "action": "dance"}, {"question": "x"}])
def test_wrong_requests_change_nothing(served: Served, review: LabelReview, body: Any) -> None:
    status, content = fetch(f"{served.address}answer", body)
    assert status == 422 and "Nothing was changed." in json.loads(content)["error"]
    assert review.place == 0


def test_nothing_is_served_without_the_token_or_to_other_pages(
    served: Served, review: LabelReview
) -> None:
    parts = urlsplit(served.address)
    body = {"question": 0, "action": "correct"}
    assert fetch(f"http://{parts.netloc}/guess/answer", body)[0] == 404
    assert fetch(f"{served.address}answer", body, Origin="https://evil.example")[0] == 403
    assert fetch(f"{served.address}../scores.csv")[0] == 404
    assert fetch(f"{served.address}session.py")[0] == 404
    assert review.place == 0
