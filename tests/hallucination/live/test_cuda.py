"""Live answers on a GPU, where passes are captured and replayed, and their risks."""

import pytest
import torch

from clew.hallucination.capture import LoadedModel, load_model
from clew.hallucination.live.delivery import LiveAnswer
from clew.hallucination.live.features import Answer
from clew.hallucination.live.session import Session
from clew.hallucination.llm import memory
from clew.hallucination.llm.requests import Request
from tests.hallucination.conftest import FitDetector
from tests.hallucination.llm.test_engine import make_prompts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
# The last ones need larger rows than the first: all passes are captured again.
PROMPTS = [*make_prompts(30), *(prompt * 8 for prompt in make_prompts(6) if len(prompt) > 12)]


@pytest.fixture(scope="module")
def gpu_model(live_model: LoadedModel) -> LoadedModel:
    return load_model(live_model.name, device="cuda", dtype="float32")


def answer_all(session: Session) -> list[LiveAnswer]:
    tickets = [session.submit(Request(prompt=prompt, max_new_tokens=10)) for prompt in PROMPTS]
    return [ticket.answer() for ticket in tickets]


@pytest.mark.parametrize("method", ["fusion", "token_probe", "lookback", "lapeigvals", "gnn_det"])
def test_answers_and_risks_are_those_of_the_cpu_and_of_their_tokens(
    live_model: LoadedModel,
    gpu_model: LoadedModel,
    fit: FitDetector,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for least in ("_MIN_CAPACITY", "_MIN_CAPACITY_OF_GRAPHS"):
        monkeypatch.setattr(memory, least, 32)
    with Session(live_model, fit(method), max_rows=8) as session:
        expected = answer_all(session)
    with Session(gpu_model, fit(method), max_rows=8) as session:
        answers = answer_all(session)
        given = list(session.scorer().score(map(given_answer, PROMPTS, answers)))
    for answer, other, one in zip(answers, expected, given, strict=True):
        assert [token.id for token in answer.tokens] == [token.id for token in other.tokens]
        assert answer.risk.state == other.risk.state == one.risk.state
        assert answer.risk.risk == pytest.approx(other.risk.risk, abs=1e-3)
        assert answer.risk.risk == pytest.approx(one.risk.risk, abs=1e-3)
        shades = [token.risk for token in other.tokens]
        assert [token.risk for token in answer.tokens] == pytest.approx(shades, abs=1e-3)
    assert sum(answer.risk.risk is not None for answer in answers) > 5


def given_answer(prompt: list[int], answer: LiveAnswer) -> Answer:
    tokens = [token.id for token in answer.tokens]
    return Answer(prompt=prompt, tokens=tokens, text=answer.text, stop_reason=answer.ended)
