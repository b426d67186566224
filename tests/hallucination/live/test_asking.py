"""Questions from everywhere, and many in one run: none of them ends it."""

import io
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.base.cores import CoreWatch
from clew.base.cpu import ThreadsChosen
from clew.base.errors import ClewError
from clew.base.progress import Event
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors.detector_folder import save_detector
from clew.hallucination.live.session import Asker, Session
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.requests import Request, Ticket
from clew.hallucination.questions import Question
from clew.pages.service import ServiceReady
from tests.cli.running import run
from tests.events import pick
from tests.hallucination.conftest import FitDetector

pytestmark = pytest.mark.slow

__all__ = ["run"]

QUESTIONS = [Question(id=f"q{i}", question=f"Who is {i}?", answers=("x",)) for i in range(12)]


@pytest.mark.parametrize("method", ["perplexity", "semantic_entropy"])
def test_more_questions_than_the_queue_holds_are_answered_in_order(
    live_model: LoadedModel, fit: FitDetector, method: str
) -> None:
    with Asker(session=Session(live_model, fit(method), max_rows=2, max_waiting=8)) as asker:
        answers = list(asker.ask(QUESTIONS))
        assert asker.session.most_at_once == (None if method == "perplexity" else 2)
    assert [answer.question for answer in answers] == QUESTIONS
    assert all(answer.ended for answer in answers)


def test_a_question_that_fails_does_not_end_the_others(
    live_model: LoadedModel, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, numbers = Engine.submit, iter(range(99))

    def fail_one(engine: Engine, request: Request) -> Ticket:
        if next(numbers) != 1:
            return submit(engine, request)
        ticket = Ticket(request, lambda: None)
        ticket.put(ClewError("out of memory"))
        return ticket

    monkeypatch.setattr(Engine, "submit", fail_one)
    with Asker(session=Session(live_model, fit("perplexity"), max_rows=2)) as asker:
        answers = list(asker.ask(QUESTIONS[:3]))
    assert [bool(answer.ended) for answer in answers] == [True, False, True]
    assert (answers[1].state, answers[1].reason) == ("unavailable", "out of memory")


@pytest.fixture(scope="module")
def detector(fit: FitDetector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a detector for the tiny model."""
    return save_detector(fit("perplexity"), tmp_path_factory.mktemp("kept"))


def test_detector_assesses_what_the_model_answers(detector: Path, live_model: LoadedModel) -> None:
    answers = clew.ask(["who is here?", "what is it?"], detector=detector, model=live_model)
    assert [one.question.question for one in answers] == ["who is here?", "what is it?"]
    for one in answers:
        assert (one.risk is None) == (one.state != "checked")
        assert one.detector == "perplexity"


def test_questions_come_from_a_file_with_their_contexts(
    detector: Path, live_model: LoadedModel, tmp_path: Path
) -> None:
    file = tmp_path / "asked.csv"
    file.write_text("id,question,context\na,who?,Ann is here.\nb,what?,\n")
    answers = clew.ask(questions=file, context="It is here.", detector=detector, model=live_model)
    assert [one.question.context for one in answers] == ["Ann is here.", "It is here."]
    assert answers.table.column("id").to_pylist() == ["a", "b"]


def test_question_that_is_too_long_is_not_checked(detector: Path, live_model: LoadedModel) -> None:
    (answer,) = clew.ask("who? " * 1000, detector=detector, model=live_model)
    assert (answer.state, answer.risk, answer.text) == ("unavailable", None, "")
    assert "limit" in (answer.reason or "")


def test_command_prints_each_answer_with_its_risk(run: Any, detector: Path) -> None:
    ended = run("ask", "who is here?", "what is it?", "--detector", detector)
    assert ended.code == 0
    first, second = ended.out.split("\n\n")
    assert first.startswith("question: who is here?\nanswer:   ")
    assert "\nrisk:     " in second


def test_questions_from_stdin_are_answered_with_a_line_of_json_each(
    run: Any, detector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("who is here?\n\n what is it?\n"))
    ended = run("ask", "--detector", detector, "--json", "--context", "it is here.")
    answers = list(map(json.loads, ended.out.splitlines()))
    assert [one["question"] for one in answers] == ["who is here?", "what is it?"]
    assert {one["context"] for one in answers} == {"it is here."}
    assert {"answer", "risk", "verdict", "state", "tokens"} <= answers[0].keys()


def test_no_question_at_all_is_an_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    ended = run("ask")
    assert ended.code == 2
    assert ended.err.startswith("clew: there is no question.")


@pytest.mark.parametrize("given", [None, 1])
def test_server_computes_with_the_threads_that_are_given_or_fastest_now(
    detector: Path, live_model: LoadedModel, monkeypatch: pytest.MonkeyPatch, given: int | None
) -> None:
    before, events, used = torch.get_num_threads(), list[Event](), list[int]()

    def end_when_ready(event: Event, /) -> None:
        events.append(event)
        if isinstance(event, ServiceReady):
            used.append(torch.get_num_threads())
            urllib.request.urlopen(f"{event.address}healthz", timeout=60).close()
            os.kill(os.getpid(), signal.SIGTERM)

    # Others use every core.
    monkeypatch.setattr(CoreWatch, "look", lambda _: float(os.cpu_count() or 1))
    torch.set_num_threads(2)
    try:
        settings: dict[str, Any] = {"port": 0, "threads": given, "reporter": end_when_ready}
        clew.serve(detector, model=live_model.name, **settings)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    chosen = [one.threads for one in pick(events, ThreadsChosen)]
    assert used == (chosen if given is None else [given])
