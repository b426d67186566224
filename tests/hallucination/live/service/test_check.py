"""Answers read beside their sources over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.grounded import Reader, load_reader
from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import QUESTION, Served, process_serving, serving

pytestmark = pytest.mark.slow

SOURCE = "Items can be returned within 30 days of delivery."
ITEM = {"source": SOURCE, "answer": "You can return items within 60 days."}


@pytest.fixture(scope="module")
def loads() -> list[Reader]:
    return []


@pytest.fixture(scope="module")
def checking(session: Session, reader_folder: Path, loads: list[Reader]) -> Iterator[Served]:
    def load() -> Reader:
        loads.append(load_reader(reader_folder, device="cpu"))
        return loads[-1]

    with serving(session, reader=load) as opened:
        yield opened


def test_a_checked_answer_has_a_risk_and_spans_by_character(
    checking: Served, loads: list[Reader]
) -> None:
    status, found, _ = checking.fetch("v1/check", ITEM)
    assert status == 200 and found["state"] == "checked" and 0 <= found["risk"] <= 1
    for span in found["spans"]:
        assert ITEM["answer"][span["start"] : span["end"]] == span["text"]
        near = span["nearest"]
        assert SOURCE[near["start"] : near["end"]] == near["text"]
    assert checking.fetch("v1/check", ITEM)[1] == found and len(loads) == 1


def test_lists_contexts_and_several_sources_are_read_alike(checking: Served) -> None:
    context = {"context": SOURCE, "answer": ITEM["answer"]}
    several = {**ITEM, "source": [SOURCE], "question": None}
    status, found, _ = checking.fetch("v1/check", [ITEM, context, several])
    assert status == 200 and found[0] == found[1] == found[2]


def test_what_cannot_be_read_says_why_and_has_no_risk(checking: Served) -> None:
    items = [{**ITEM, "answer": " "}, {**ITEM, "source": []}]
    _, found, _ = checking.fetch("v1/check", items)
    assert [(one["state"], one["risk"], one["spans"]) for one in found] == [
        ("unavailable", None, [])
    ] * 2
    assert "empty" in found[0]["reason"] and "no source" in found[1]["reason"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"answer": "a"}, 400, "source"),
        ({"source": "a"}, 400, "answer"),
        ([ITEM, {"source": "a"}], 400, "[1].answer"),
        ({**ITEM, "source": 5}, 400, "source"),
        ({**ITEM, "context": "a"}, 400, "source"),
        ({**ITEM, "source": ["a", 5]}, 400, "source"),
        ({**ITEM, "extra": 1}, 400, "extra"),
        ([ITEM] * 257, 422, None),
        (b"null", 400, None),
        ({**ITEM, "source": "a" * 200_000}, 413, None),
    ],
)
def test_wrong_items_are_named(checking: Served, body: Any, status: int, param: str | None) -> None:
    found, content, _ = checking.fetch("v1/check", body)
    assert (found, content["error"]["param"]) == (status, param)


def test_an_answer_is_scored_and_checked_at_once(checking: Served) -> None:
    both = {**ITEM, "question": "How long?", "check": True}
    _, (scored, plain), _ = checking.fetch("v1/score", [both, {**both, "check": False}])
    [alone] = checking.fetch("v1/check", [{**ITEM, "question": "How long?"}])[1]
    assert scored["check"] == alone and "check" not in plain


def test_a_reader_that_cannot_be_loaded_is_an_error_of_the_server(session: Session) -> None:
    with serving(session, reader=lambda: load_reader("none")) as served:
        status, content, _ = served.fetch("v1/check", ITEM)
        assert status == 500 and "none" not in content["error"]["message"]


def test_checking_requires_a_key_where_there_are_keys(session: Session) -> None:
    with serving(session, keys=["secret"]) as served:
        assert served.fetch("v1/check", ITEM)[0] == 401


def test_a_reader_is_served_alone(reader_folder: Path, tmp_path: Path) -> None:
    with process_serving(tmp_path / "said", reader_folder) as (process, address):
        served = Served(address=address.removesuffix("v1"), session=None, ending=None)  # type: ignore[arg-type]
        status, found, _ = served.fetch("v1/check", ITEM)
        assert status == 200 and found["detector"] == "mine" and "the reader mine" in process.output
        assert served.fetch("clew/page")[1]["live"] is None and served.fetch("readyz")[0] == 200
        assert served.fetch("v1/chat/completions", {"messages": QUESTION})[0] == 404
