"""What reaches whoever asked when something goes wrong between the engine and them."""

import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clew.base.errors import ClewError
from clew.base.garbage import collect_later
from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.delivery import Delivery
from clew.hallucination.live.scoring import AnswerScorer, Scored
from clew.hallucination.live.session import Session
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.recording import RowCopy, RowRecord
from clew.hallucination.llm.requests import Finished, Request, Ticket, Token
from tests.hallucination.conftest import FitDetector
from tests.hallucination.live.making import read_traces
from tests.hallucination.live.test_scoring import to_score

pytestmark = pytest.mark.slow

CANCELED = Finished(tokens=(), text="", ended="canceled", logprobs=(), entropies=())


@pytest.mark.parametrize("event", [ClewError("out of memory"), CANCELED])
def test_an_answer_whose_draws_failed_has_no_risk(
    live_model: LoadedModel, fit: FitDetector, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    submit = Engine.submit

    def fail_draws(engine: Engine, request: Request) -> Ticket:
        if request.is_scored:
            return submit(engine, request)
        ticket = Ticket(request, lambda: None)
        ticket.put(event)
        return ticket

    monkeypatch.setattr(Engine, "submit", fail_draws)
    with Session(live_model, fit("semantic_entropy"), max_rows=8) as session:
        answers = [session.ask(f"Who is {i}?", max_new_tokens=10) for i in range(4)]
    assert {answer.risk.state for answer in answers} == {"unavailable"}
    assert any("could not be generated" in (answer.risk.reason or "") for answer in answers)


def test_a_detector_that_compares_answers_needs_some(
    live_model: LoadedModel, fit: FitDetector
) -> None:
    fitted = fit("semantic_entropy")
    without = replace(fitted.kept, generation={**fitted.generation, "samples": 0})
    with Session(live_model, replace(fitted, origin=without), max_rows=8) as session:
        answers = [session.ask(f"Who is {i}?", max_new_tokens=10) for i in range(4)]
    assert {answer.risk.state for answer in answers} == {"unavailable"}
    assert any("none were drawn" in (answer.risk.reason or "") for answer in answers)


def test_tokens_of_a_repetition_are_not_in_the_answer(
    live_model: LoadedModel, fit: FitDetector
) -> None:
    ticket = Ticket(Request(prompt=[1], max_new_tokens=9), lambda: None)
    engine: Any = SimpleNamespace(submit=lambda _: ticket)
    delivery = Delivery(live_model, fit("perplexity"), engine)
    answer = delivery.submit(ticket.request)
    for number in (5, 6, 6):
        ticket.put(Token(id=number, text="x", logprob=-1.0, entropy=1.0))
    ticket.put(Finished(tokens=(5, 6), text="xx", ended="repetition", logprobs=(), entropies=()))
    assert [token.id for token in answer.answer().tokens] == [5, 6]
    delivery.close()


def test_a_token_probe_that_fails_holds_up_nobody(
    live_model: LoadedModel, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = fit("token_probe")
    assert probe.tokens is not None
    monkeypatch.setattr(type(probe.tokens), "score", lambda *_: [][1])
    failing = replace(probe.tokens, trained_on="spans")
    detector = replace(fit("perplexity"), tokens=failing, basis=probe.basis)
    with Session(live_model, detector, max_rows=4) as session:
        answer = session.ask("What is the capital of France?")
        assert answer.text and {token.risk for token in answer.tokens} == {None}
        assert session.is_running


def test_the_record_of_an_answer_is_freed_with_its_delivery(
    live_model: LoadedModel, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[weakref.ref[RowCopy]] = []
    copy = RowRecord.copy

    def note(*arguments: Any, **named: Any) -> RowCopy:
        copied = copy(*arguments, **named)
        records.append(weakref.ref(copied))
        return copied

    monkeypatch.setattr(RowRecord, "copy", note)
    with collect_later(), Session(live_model, fit("fusion"), max_rows=4) as session:
        tickets = [
            session.submit(session.make_request(f"{i}?", max_new_tokens=3)) for i in range(8)
        ]
        assert all(ticket.answer().tokens for ticket in tickets)
        session.close()
        assert len(records) == 8 and not any(record() for record in records)


def test_answers_are_checked_while_given_ones_are_scored(
    live_model: LoadedModel, live_store: Path, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are evaluated by the model: the engine scores given ones while the others wait for
    it."""
    evaluating, scoring = threading.Event(), threading.Event()
    evaluate, assess = Delivery._evaluate, AnswerScorer._assess

    def evaluate_meanwhile(*given: Any) -> Any:
        evaluating.set()
        assert scoring.wait(60)
        return evaluate(*given)

    def assess_meanwhile(*given: Any) -> list[Scored]:
        scoring.set()
        return assess(*given)

    monkeypatch.setattr(Delivery, "_evaluate", evaluate_meanwhile)
    monkeypatch.setattr(AnswerScorer, "_assess", assess_meanwhile)
    traces, states = [*read_traces(live_store).values()][:12], []

    def ask_and_score() -> None:
        with Session(live_model, fit("p_true"), max_rows=4) as session:
            asked = [session.submit(session.make_request(one["question"])) for one in traces]
            assert evaluating.wait(60)
            states.append([one.risk.state for one in session.scorer().score(map(to_score, traces))])
            states.append([ticket.answer().risk.state for ticket in asked])

    thread = threading.Thread(target=ask_and_score, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive(), "they wait for each other"
    assert states[0] == states[1] and "checked" in states[0]
