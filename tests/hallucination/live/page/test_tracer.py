"""The trace of a new answer: what it shows is what capture would have stored."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.detectors.tokens import TokenProbe
from clew.hallucination.live.features import Answer
from clew.hallucination.live.page.routes import Page, Tracer, TraceRequest
from clew.hallucination.live.page.stored import BrowsedStore, PageFiles
from clew.hallucination.live.session import Session
from tests.hallucination.live.making import split_tokens

TOKEN_SETTINGS: dict[str, Any] = {
    "pooling": "max",
    "attention": np.zeros(0, np.float32),
    "without": 0.0,
    "trained_on": "spans",
}


@pytest.fixture(scope="module")
def tracer(session: Session) -> Tracer:
    return Tracer(session)


@pytest.mark.slow
def test_a_captured_answer_traced_again_is_the_same(
    tracer: Tracer, trace_store: BrowsedStore
) -> None:
    trace = trace_store.loader.get_trace_by_global_id(11)
    assert trace is not None
    stored, answer = trace_store.show(trace), split_tokens(trace)[1]
    again = tracer.trace(trace["question"], None, answer)
    assert again.texts == stored.texts
    assert stored.graph is not None and again.graph is not None
    for ours, theirs in (
        (again.states, stored.states),
        (again.logprobs, stored.logprobs),
        (again.graph.weights, stored.graph.weights),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=5e-3, atol=5e-3)


def request_of(store: BrowsedStore, number: int) -> tuple[Any, TraceRequest]:
    trace = store.loader.get_trace_by_global_id(number)
    assert trace is not None
    tokens = split_tokens(trace)[1]
    return trace, TraceRequest(question=trace["question"], tokens=tokens)


@pytest.mark.slow
@pytest.mark.parametrize("has_store", [True, False])
def test_a_new_answer_is_placed_among_known_ones(
    tracer: Tracer, page_files: PageFiles, trace_store: BrowsedStore, has_store: bool
) -> None:
    page = Page(files=page_files if has_store else PageFiles(), live=tracer)
    trace, wanted = request_of(trace_store, 11)
    shown = page.live_trace(wanted)
    assert shown is not None and shown["number"] is None and shown["has_links"] == has_store
    assert shown["near"]["items"][0]["answer"] == trace["answer"]
    assert len(shown["course"]["risks"]) == 3 and shown["known"] == ""


def test_tokens_of_a_stored_answer_get_the_risk_that_new_ones_get(
    session: Session, ending_model: LoadedModel, trace_store: BrowsedStore
) -> None:
    weights = np.random.default_rng(0).normal(size=2 * 4 + 2).astype(np.float32) / 4
    probe = TokenProbe(layers=(0, 2), weights=weights, bias=0.1, **TOKEN_SETTINGS)
    trace, _ = request_of(trace_store, 11)
    prompt, tokens = split_tokens(trace)
    with Session(ending_model, replace(session.detector, tokens=probe)) as opened:
        given = Answer(prompt=prompt, tokens=tokens, text="x")
        [scored] = opened.scorer(tokens=True).score([given])
        found = Tracer(opened).score_tokens(trace_store, trace)
    assert found is not None and found == pytest.approx(scored.token_risks, abs=2e-3)


def test_traces_of_another_model_are_not_compared(tracer: Tracer, session: Session) -> None:
    assert tracer.explain_other_model(session.detector.model) == ""
    other = {**session.detector.model, "id": "another"}
    assert "another model" in tracer.explain_other_model(other)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [([], "is empty"), ([5, 10**6], "beyond the model"), ([5] * 3000, "only traces of up to")],
)
def test_what_cannot_be_traced_is_refused(tracer: Tracer, tokens: list[int], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        tracer.trace("Who?", None, tokens)
