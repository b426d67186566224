"""Answers that exist already, scored over HTTP."""

from typing import Any

import pytest

from tests.hallucination.live.service.serving import DIALOGUE, QUESTION, Served

ITEM = {"question": str(QUESTION[0]["content"]), "answer": "Paris"}


def test_a_given_answer_has_a_risk_for_it_and_its_tokens(served: Served) -> None:
    status, found, _ = served.fetch("score", ITEM)
    assert status == 200 and found["state"] in ("checked", "out_of_distribution")
    assert 0 <= found["risk"] <= 1
    assert "".join(one["token"] for one in found["tokens"]).strip() == "Paris"


def test_a_list_and_a_conversation_are_scored_alike(served: Served) -> None:
    as_chat = {"messages": QUESTION, "answer": "Paris"}
    risks = [one["risk"] for one in served.fetch("score", [ITEM, as_chat, ITEM])[1]]
    assert risks == pytest.approx([served.fetch("score", ITEM)[1]["risk"]] * 3, abs=1e-3)


def test_conversations_and_empty_answers_are_scored_or_say_why_not(served: Served) -> None:
    items = [{"messages": DIALOGUE, "answer": "Paris"}, {**ITEM, "answer": ""}]
    _, (dialogue, empty), _ = served.fetch("score", items)
    assert dialogue["risk"] is not None
    assert (empty["state"], empty["risk"]) == ("unavailable", None) and "empty" in empty["reason"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"question": "a"}, 400, "answer"),
        ({"answer": "a"}, 400, "question"),
        ({**ITEM, "messages": QUESTION}, 400, "question"),
        ([ITEM, {**ITEM, "extra": 1}], 400, "[1].extra"),
        ({**ITEM, "answer": 5}, 400, "answer"),
        ({"answer": "a", "messages": [{"role": "tool", "content": "b"}]}, 400, "messages[0].role"),
        ([ITEM] * 257, 422, None),
        (None, 400, None),
    ],
)
def test_wrong_items_are_named(served: Served, body: Any, status: int, param: str | None) -> None:
    found, content, _ = served.fetch("score", b"null" if body is None else body)
    assert (found, content["error"]["param"]) == (status, param)
