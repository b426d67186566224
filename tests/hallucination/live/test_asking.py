"""Many questions in one run: none of them ends it."""

import pytest

from clew.base.errors import ClewError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.session import Asker, Session
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.requests import Request, Ticket
from clew.hallucination.questions import Question
from tests.hallucination.conftest import FitDetector

pytestmark = pytest.mark.slow

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
