"""Answers that exist already, scored over HTTP."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clew.hallucination.live.scoring import AnswerScorer
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import DIALOGUE, QUESTION, Served, serving

pytestmark = pytest.mark.slow

ITEM = {"question": str(QUESTION[0]["content"]), "answer": "Paris"}


def test_a_given_answer_has_a_risk_for_it_and_its_tokens(served: Served) -> None:
    status, found, _ = served.fetch("score", ITEM)
    assert status == 200 and found["state"] in ("checked", "out_of_distribution")
    name = "risk" if found["state"] == "checked" else "token_probability_risk"
    assert 0 <= found[name] <= 1
    assert "".join(one["token"] for one in found["tokens"]).strip() == "Paris"


def risk_of(found: dict[str, Any]) -> float:
    return found["token_probability_risk"] if found["risk"] is None else found["risk"]


def test_a_list_and_a_conversation_are_scored_alike(served: Served) -> None:
    as_chat = {"messages": QUESTION, "answer": "Paris"}
    found = [served.fetch("score", ITEM)[1], *served.fetch("score", [ITEM, as_chat, ITEM])[1]]
    assert list(map(risk_of, found)) == pytest.approx([risk_of(found[0])] * 4, abs=1e-3)


def test_v1_scores_sources_and_logged_conversations(served: Served) -> None:
    logged = {"messages": [*QUESTION, {"role": "assistant", "content": "Paris"}]}
    sourced = {**ITEM, "source": "France is large."}
    items = [ITEM, logged, sourced, {**ITEM, "context": "France is large."}]
    items.append({"source": "France is large.", "answer": "France is large."})
    status, found, _ = served.fetch("v1/score", items)
    risks = list(map(risk_of, found))
    assert status == 200 and risks[:1] * 2 == pytest.approx(risks[:2], abs=1e-3)
    assert risks[2] == pytest.approx(risks[3], abs=1e-3) and risks[2] != risks[0]


def test_conversations_and_empty_answers_are_scored_or_say_why_not(served: Served) -> None:
    items = [{"messages": DIALOGUE, "answer": "Paris"}, {**ITEM, "answer": ""}]
    _, (dialogue, empty), _ = served.fetch("score", items)
    assert dialogue["state"] != "unavailable"
    assert (empty["state"], empty["risk"]) == ("unavailable", None) and "empty" in empty["reason"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"question": "a"}, 400, "answer"),
        ({"answer": "a"}, 400, "question"),
        ({**ITEM, "messages": QUESTION}, 400, "question"),
        ([ITEM, {**ITEM, "extra": 1}], 400, "[1].extra"),
        ({**ITEM, "answer": 5}, 400, "answer"),
        ({"answer": "a", "messages": [{"role": "robot", "content": "b"}]}, 400, "messages[0].role"),
        ([ITEM] * 257, 422, None),
        (None, 400, None),
    ],
)
def test_wrong_items_are_named(served: Served, body: Any, status: int, param: str | None) -> None:
    found, content, _ = served.fetch("score", b"null" if body is None else body)
    assert (found, content["error"]["param"]) == (status, param)


def test_answers_that_take_too_long_to_score_end_with_an_error(session: Session) -> None:
    with serving(session, request_seconds=0.001) as served:
        status, content, _ = served.fetch("score", [ITEM] * 200)
        assert (status, content["error"]["code"]) == (503, "timeout")


def test_the_end_of_the_server_ends_scoring_with_an_error(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on, passes = threading.Event(), threading.Event(), []
    begin = AnswerScorer._begin

    def wait(scorer: AnswerScorer, *given: Any) -> Any:
        passes.append(given)
        started.set()
        go_on.wait(60)
        return begin(scorer, *given)

    monkeypatch.setattr(AnswerScorer, "_begin", wait)
    with serving(session, drain_seconds=0) as served, ThreadPoolExecutor(1) as thread:
        reply = thread.submit(served.fetch, "score", [ITEM] * 200)
        assert started.wait(60)
        served.ending.begin()
        status, content, _ = reply.result(60)
        go_on.set()
    assert (status, content["error"]["code"]) == (503, "shutting_down")
    assert len(passes) == 1, "no further batch is passed"
