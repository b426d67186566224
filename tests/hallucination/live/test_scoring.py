"""An answer gets the same risk from its samples, from its tokens, and while it is generated."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import ClewError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.calibration import read_sample_vectors
from clew.hallucination.live.delivery import LiveAnswer, LiveTicket
from clew.hallucination.live.features import Answer
from clew.hallucination.live.scoring import AnswerScorer, Scored
from clew.hallucination.live.session import Session
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.requests import Request, Ticket
from clew.hallucination.samples.answers import AnswerFeatures
from tests.hallucination.conftest import FitDetector
from tests.hallucination.live.making import read_traces, split_tokens, stored_risks

pytestmark = pytest.mark.slow

METHODS = (
    *("perplexity", "min_probability", "mean_entropy", "semantic_entropy", "attention_score"),
    *("consistency", "selfcheck_ngram", "semantic_entropy_probe", "contrastive"),
    *("linear_probe", "linear_probe_middle", "linear_probe_pca", "saplma", "lapeigvals"),
    *(
        "attn_logdet",
        "lookback",
        "token_probe",
        "fusion",
        "robust",
        "gated",
        "lstm",
        "gnn_det",
        "gvae",
        "act_vit",
        "charm",
        "p_true",
        "ccs",
        "contrast_probe",
        "entailment_entropy",
    ),
)


def to_score(trace: Any) -> Answer:
    prompt, tokens = split_tokens(trace)
    return Answer(
        prompt=prompt,
        tokens=tokens,
        question=trace["question"],
        text=trace["answer"],
        stop_reason=trace["stop_reason"],
        name=trace["question_id"],
    )


def score(model: LoadedModel, detector: Detector, traces: Sequence[Any], rows: int) -> list[Scored]:
    return list(AnswerScorer(model, detector, rows=rows).score(map(to_score, traces)))


@pytest.mark.parametrize("method", ["perplexity", "gated", "lstm"])
def test_vector_for_adaptation_from_tokens_equals_the_one_from_samples(
    live_model: LoadedModel, live_store: Path, live_samples: Path, fit: FitDetector, method: str
) -> None:
    detector, traces, data = fit(method), read_traces(live_store), AnswerFeatures(live_samples)
    other = replace(detector, origin=replace(detector.kept, data={}))  # fitted on other answers
    expected, _ = read_sample_vectors(other, data)
    numbers = [number for split in ("train", "validation", "test") for number in data.ids[split]]
    scorer = AnswerScorer(live_model, detector, rows=32, vectors=True)
    found = [one.vector for one in scorer.score(to_score(traces[number]) for number in numbers)]
    both = [(one, row) for one, row in zip(found, expected, strict=True) if one is not None]
    assert len(both) > 8
    for one, row in both:
        assert one.dtype == np.float32
        assert one == pytest.approx(row, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_risk_from_tokens_equals_the_risk_from_samples(
    live_model: LoadedModel,
    live_store: Path,
    live_samples: Path,
    fit: FitDetector,
    method: str,
) -> None:
    detector, traces = fit(method), read_traces(live_store)
    numbers = AnswerFeatures(live_samples).ids["train"].tolist()
    expected = stored_risks(detector, live_samples, "train")
    found = score(live_model, detector, [traces[number] for number in numbers], 32)
    compared = 0
    for one, risk, number in zip(found, expected, numbers, strict=True):
        ended = traces[number]["stop_reason"] != "length" and traces[number]["answer"].strip()
        if one.risk.state == "checked" and risk is not None:
            assert one.risk.risk == pytest.approx(risk, abs=1e-3), traces[number]["answer"]
            compared += 1
        else:
            assert one.risk.state == "out_of_distribution" or not ended
    assert compared >= 10


@pytest.mark.parametrize("method", ["fusion", "gnn_det", "charm", "perplexity", "p_true", "ccs"])
def test_risk_of_a_generated_answer_equals_that_from_its_tokens(
    live_model: LoadedModel, live_store: Path, fit: FitDetector, method: str
) -> None:
    traces = [*read_traces(live_store).values()][:12]
    with Session(live_model, fit(method), max_rows=5) as session:
        tickets = [
            session.submit(Request(prompt=split_tokens(trace)[0], max_new_tokens=10))
            for trace in traces
        ]
        answers = [ticket.answer() for ticket in tickets]
        given = list(session.scorer().score(map(to_score, traces)))
    for answer, other, trace in zip(answers, given, traces, strict=True):
        assert [token.id for token in answer.tokens] == split_tokens(trace)[1]
        assert answer.risk.state == other.risk.state
        if answer.risk.risk is not None:
            assert answer.risk.risk == pytest.approx(other.risk.risk, abs=1e-3)
    assert any(answer.risk.risk is not None for answer in answers)


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_risk_does_not_depend_on_the_batch(
    live_model: LoadedModel, live_store: Path, fit: FitDetector, rows: int
) -> None:
    traces = [*read_traces(live_store).values()][:20]
    expected = score(live_model, fit("fusion"), traces, 7)
    for one, other in zip(score(live_model, fit("fusion"), traces, rows), expected, strict=True):
        assert one.risk.state == other.risk.state
        assert one.risk.risk == pytest.approx(other.risk.risk, abs=1e-3)


def ended_question(store: Path) -> str:
    """One whose answer ends by itself."""
    traces = read_traces(store).values()
    ended = (one for one in traces if one["stop_reason"] != "length" and one["answer"].strip())
    return str(next(ended)["question"])


def test_semantic_entropy_draws_answers_live(
    live_model: LoadedModel,
    live_store: Path,
    fit: FitDetector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, seeds = Engine.submit, []

    def watch(engine: Engine, request: Request) -> Ticket:
        seeds.extend([] if request.is_scored else [request.sampling.seed])
        return submit(engine, request)

    monkeypatch.setattr(Engine, "submit", watch)
    with Session(live_model, fit("semantic_entropy"), max_rows=8) as session:
        answer = session.ask(ended_question(live_store))
    assert len({*seeds}) == 3, "as many as the training answers have"
    assert answer.risk.state != "unavailable" and answer.risk.risk is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": [], "text": ""}, "empty"),
        ({"text": " "}, "empty"),
        ({"stop_reason": "length"}, "cut off"),
        ({"stop_reason": "canceled"}, "canceled"),
        ({"tokens": [8] * 300}, "303 tokens, but the model's limit is 256"),
        ({"problem": "line 3: it is not JSON"}, "line 3"),
    ],
)
def test_an_answer_that_was_not_checked_has_no_risk(
    session: Session, changes: dict[str, Any], reason: str
) -> None:
    given = {"prompt": [5, 6, 7], "tokens": [8, 9], "text": "two words", **changes}
    [found] = session.scorer().score([Answer(**given)])
    assert (found.risk.state, found.risk.risk, found.risk.verdict) == ("unavailable", None, None)
    assert reason in (found.risk.reason or "")


def test_an_answer_that_does_not_fit_in_memory_does_not_end_the_others(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_all = AnswerScorer._pass

    def run_out(scorer: AnswerScorer, answers: Sequence[Answer]) -> Any:
        if any(answer.length > 50 for answer in answers):
            raise torch.OutOfMemoryError("out of memory")
        return score_all(scorer, answers)

    monkeypatch.setattr(AnswerScorer, "_pass", run_out)
    given = [Answer(prompt=[5, 6, 7], tokens=[8] * n, text="words") for n in (2, 60, 3)]
    risks = [one.risk for one in session.scorer().score(given)]
    assert [risk.state == "unavailable" for risk in risks] == [False, True, False]
    assert "63 tokens with its prompt" in (risks[1].reason or "")


def test_a_cut_off_and_a_canceled_answer_are_unavailable(
    session: Session, live_store: Path
) -> None:
    long = next(t for t in read_traces(live_store).values() if len(split_tokens(t)[1]) > 2)
    cut = session.ask(long["question"], max_new_tokens=1)
    assert (cut.ended, cut.risk.state) == ("length", "unavailable")
    assert "cut off" in (cut.risk.reason or "")

    def submit_and_cancel() -> LiveTicket:
        ticket = session.submit(Request(prompt=[9] * 20, max_new_tokens=10))
        ticket.cancel()
        return ticket

    canceled = session.call(submit_and_cancel).answer()  # between two passes
    assert (canceled.ended, canceled.risk.state) == ("canceled", "unavailable")


def test_a_request_that_is_not_scored_says_so(session: Session) -> None:
    request = Request(prompt=[9, 8, 7], max_new_tokens=4, is_scored=False)
    assert "turned off" in (session.submit(request).answer().risk.reason or "")


def test_tokens_come_before_the_answer_and_make_up_its_text(session: Session) -> None:
    events = list(session.submit(session.make_request("What is the capital of France?")))
    *tokens, answer = events
    assert isinstance(answer, LiveAnswer)
    assert tuple(tokens) == answer.tokens
    assert "".join(token.text for token in answer.tokens) == answer.text


def test_events_may_be_pushed_instead_of_pulled(session: Session) -> None:
    import queue

    events: queue.Queue[Any] = queue.Queue()
    session.submit(session.make_request("What?")).on_event(events.put)
    while not isinstance(event := events.get(timeout=120), LiveAnswer):
        pass
    assert event.ended


def test_an_answer_that_fails_to_be_scored_holds_up_nobody(
    live_model: LoadedModel, live_store: Path, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = ended_question(live_store)
    with Session(live_model, fit("perplexity"), max_rows=4) as session:
        with monkeypatch.context() as patch:
            patch.setattr(Detector, "assess", lambda *_, **__: [][1])
            failed = session.ask(question)
        assert failed.risk.state == "unavailable" and failed.text
        assert failed.risk.reason == "scoring it failed (IndexError)"
        assert session.ask(question).text == failed.text
        assert session.is_running


def test_token_risks_are_the_same_live_and_from_tokens(
    live_model: LoadedModel, live_store: Path, fit: FitDetector
) -> None:
    other = fit("token_probe")
    assert other.tokens is not None and other.token_probe is None  # no span labels: no shades
    probe = replace(other.tokens, trained_on="spans")
    detector = replace(fit("perplexity"), tokens=probe, basis=other.basis)
    traces = [*read_traces(live_store).values()][:6]
    with Session(live_model, detector, max_rows=4) as session:
        tickets = [
            session.submit(Request(prompt=split_tokens(trace)[0], max_new_tokens=10))
            for trace in traces
        ]
        answers = [ticket.answer() for ticket in tickets]
        given = list(session.scorer(tokens=True).score(map(to_score, traces)))
    compared = 0
    for answer, one in zip(answers, given, strict=True):
        live = [token.risk for token in answer.tokens]
        assert all(risk is not None and 0 <= risk <= 1 for risk in live)
        if one.token_risks is not None:
            assert live == pytest.approx(one.token_risks, abs=1e-3)
            compared += 1
    assert compared


def test_a_session_whose_engine_has_died_does_not_run(
    live_model: LoadedModel, fit: FitDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with Session(live_model, fit("perplexity"), max_rows=1) as session:
        session.start()
        assert session.is_running
        assert session._engine is not None
        monkeypatch.setattr(session._engine._batch, "admit", None)  # calling it is an error
        with pytest.raises(ClewError):
            session.call(lambda: 7)
        session._engine._thread.join()
        assert not session.is_running
