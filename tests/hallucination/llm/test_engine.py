"""The engine gives what capture gives, whatever else is in the batch."""

import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.llm import passes, scheduler
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.graphs import GraphPasses
from clew.hallucination.llm.recording import Recording, reduce_rows
from clew.hallucination.llm.requests import Finished, Request, Sampling, Ticket, Token
from clew.hallucination.traces.compact import Reduced
from tests.builders import make_decoder, tiny_loaded, tiny_tokenizer
from tests.hallucination.llm.test_faithful import TOLERANCE, worst_error

pytestmark = pytest.mark.slow

NEW_TOKENS = 14
FAMILIES = ("gpt2", "opt", "qwen2")
BEGINNING = list(range(7, 18))


@pytest.fixture(scope="module")
def decoder(loaded: LoadedModel) -> Decoder:
    return make_decoder(loaded, max_new_tokens=NEW_TOKENS, cut="sentence")


@pytest.fixture(scope="module")
def recording(decoder: Decoder) -> Recording:
    return Recording(shape=decoder.shape, basis=decoder.basis, token_layers=(0, 2))


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel, recording: Recording) -> Iterator[Engine]:
    with Engine(loaded, recording, max_rows=6) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone_engine() -> Iterator[Engine]:
    """For one request at a time, on a model of its own: the same weights."""
    with Engine(tiny_loaded(), max_rows=1) as engine:
        yield engine


def make_prompts(count: int, longest: int = 12) -> list[list[int]]:
    random = torch.Generator().manual_seed(5)
    sizes = [1 + number * 5 % longest for number in range(count)]
    own = [torch.randint(1, 380, (size,), generator=random).tolist() for size in sizes]
    return [BEGINNING * (number % 3 > 0) + tokens for number, tokens in enumerate(own)]


def ask(engine: Engine, prompt: list[int], **settings: Any) -> Ticket:
    return engine.submit(Request(prompt=prompt, **({"max_new_tokens": NEW_TOKENS} | settings)))


def finish(ticket: Ticket) -> Finished:
    *_, finished = ticket
    assert isinstance(finished, Finished)
    return finished


def record_of(answer: Finished) -> Reduced:
    """What capture would have stored of it."""
    assert answer.record is not None
    return reduce_rows([answer.record])


def assert_same(found: Reduced, expected: Reduced) -> None:
    for field in fields(Reduced):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "edge_source":  # edges of equal weight may change places
            assert (mine != theirs).float().mean() < 0.01
            continue
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=field.name)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES)]
)
def test_answers_and_records_equal_captured_ones(
    family: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ahead:  # as on a GPU
        monkeypatch.setattr(scheduler, "choose_passes", GraphPasses)
    loaded = tiny_loaded(family)
    decoder = make_decoder(loaded, max_new_tokens=NEW_TOKENS, cut="sentence")
    recording = Recording(shape=decoder.shape, basis=decoder.basis)
    prompts = make_prompts(6)
    with Engine(loaded, recording, max_rows=4) as engine:
        tickets = [ask(engine, prompt, cut="sentence") for prompt in prompts]
        found = [finish(ticket) for ticket in tickets]
    for prompt, mine in zip(prompts, found, strict=True):
        (answer,), record = decoder.answer([prompt])
        assert (mine.tokens, mine.ended) == (answer.tokens, answer.ended)
        assert mine.logprobs == pytest.approx(answer.logprobs, abs=1e-4)
        assert mine.entropies == pytest.approx(answer.entropies, abs=1e-4)
        assert_same(record_of(mine), record)


@pytest.mark.parametrize("rows", [2, 32])
def test_an_answer_does_not_depend_on_the_batch(
    loaded: LoadedModel, alone_engine: Engine, decoder: Decoder, recording: Recording, rows: int
) -> None:
    prompts = make_prompts(18)
    drawn = Sampling(temperature=0.7, top_p=0.9, seed=3)
    samplings = [drawn if number % 2 else Sampling() for number in range(len(prompts))]
    with Engine(loaded, recording, max_rows=rows) as engine:
        tickets = [
            ask(engine, prompt, sampling=sampling, max_new_tokens=2 + number % 5)
            for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
        ]
        answers = [finish(ticket) for ticket in tickets]
    for number in (1, 2, 17):
        answer, prompt = answers[number], prompts[number]
        alone = finish(ask(alone_engine, prompt, sampling=samplings[number]))
        assert answer.tokens == alone.tokens[: len(answer.tokens)]
        assert_same(record_of(answer), decoder.record([prompt], [list(answer.tokens)])[1])


def test_a_long_prompt_is_passed_in_parts_while_others_are_answered(
    loaded: LoadedModel, decoder: Decoder, recording: Recording
) -> None:
    long = (make_prompts(40)[3] * 30)[:220]
    with Engine(loaded, recording, max_rows=2) as engine:
        first = ask(engine, BEGINNING, cut="none", max_new_tokens=30)
        assert isinstance(first.get(timeout=60), Token)
        answer = finish(ask(engine, long, max_new_tokens=5))
        finish(first)
    assert_same(record_of(answer), decoder.record([long], [list(answer.tokens)])[1])


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("count", [1, 8])
def test_a_short_question_takes_turns_with_long_prompts(
    loaded: LoadedModel,
    decoder: Decoder,
    recording: Recording,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    ahead: bool,
) -> None:
    """Where each pass takes as long as another: at most twice as many passes as alone, and one."""
    if ahead:
        monkeypatch.setattr(scheduler, "choose_passes", GraphPasses)
    monkeypatch.setattr(scheduler, "_LONG", {"cpu": 40, "cuda": 40})
    monkeypatch.setattr(scheduler, "_CHUNK", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(scheduler, "_MIN_CHUNK", 4)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    random = torch.Generator().manual_seed(7)
    longs = torch.randint(1, 380, (count, 200), generator=random).tolist()
    with Engine(loaded, recording, max_rows=12) as engine:
        alone = passes_of(engine, list(range(100, 111)))
        tickets = engine.call(lambda: [ask(engine, long, max_new_tokens=5) for long in longs])
        assert engine.call(lambda: engine.load.running) == count
        beside = passes_of(engine, list(range(200, 211)))
        assert engine.load.running == count, "the long prompts are not answered yet"
        answers = [finish(ticket) for ticket in tickets]
    assert beside <= 2 * alone + 1 + ahead
    for long, answer in zip(longs, answers, strict=True):
        assert_same(record_of(answer), decoder.record([long], [list(answer.tokens)])[1])


def passes_of(engine: Engine, prompt: list[int]) -> int:
    """How many passes there are until a request is answered."""
    found: Future[int] = Future()

    def submit() -> None:
        before = engine.load.passes
        ticket = ask(engine, prompt, cut="none", max_new_tokens=10)
        ticket.on_event(
            lambda event: (
                found.set_result(engine.load.passes - before)
                if isinstance(event, Finished)
                else None
            )
        )

    engine.call(submit)
    return found.result(60)


def test_only_the_columns_that_are_asked_for_are_recorded(
    loaded: LoadedModel, decoder: Decoder
) -> None:
    recording = Recording(
        shape=decoder.shape, basis=None, columns=frozenset({"last_hidden", "lookback"})
    )
    with Engine(loaded, recording, max_rows=2) as engine:
        answer = finish(ask(engine, BEGINNING))
    expected = decoder.record([BEGINNING], [list(answer.tokens)])[1]
    assert torch.allclose(record_of(answer).last_hidden, expected.last_hidden, atol=1e-5)
    assert torch.allclose(record_of(answer).lookback, expected.lookback, atol=1e-5)
    assert not len(record_of(answer).nodes) and not len(record_of(answer).laplacian_diagonal)


def test_every_token_comes_with_its_projected_states(engine: Engine, decoder: Decoder) -> None:
    *tokens, answer = ask(engine, BEGINNING)
    assert isinstance(answer, Finished)
    layers, length = decoder.shape.layers, len(BEGINNING) + len(tokens)
    nodes = record_of(answer).nodes.view(layers, length, -1)[:, len(BEGINNING) :]
    assert [token.id for token in tokens if isinstance(token, Token)] == list(answer.tokens)
    for number, token in enumerate(tokens):
        assert isinstance(token, Token) and token.nodes is not None
        assert torch.allclose(token.nodes, nodes[[0, 2], number], atol=1e-5)


def test_a_request_that_is_not_scored_is_not_recorded(engine: Engine) -> None:
    scored, plain = ask(engine, BEGINNING), ask(engine, BEGINNING, is_scored=False)
    assert finish(plain).record is None
    assert finish(scored).tokens == finish(ask(engine, BEGINNING)).tokens


def test_an_answer_ends_before_a_stop_text(engine: Engine, decoder: Decoder) -> None:
    free = finish(ask(engine, BEGINNING, cut="none"))
    stop = free.text[3:6]
    *tokens, answer = ask(engine, BEGINNING, cut="none", stop=("\0never", stop))
    assert isinstance(answer, Finished)
    assert (answer.ended, answer.text) == ("stop", free.text[: free.text.index(stop)])
    assert "".join(t.text for t in tokens if isinstance(t, Token)) == answer.text
    assert_same(record_of(answer), decoder.record([BEGINNING], [list(answer.tokens)])[1])


def test_streamed_texts_add_up_to_the_answer(engine: Engine) -> None:
    for prompt in make_prompts(6):
        *tokens, answer = ask(engine, prompt, cut="none", max_new_tokens=24)
        assert isinstance(answer, Finished)
        assert "".join(t.text for t in tokens if isinstance(t, Token)) == answer.text


def test_alternatives_come_with_their_log_probabilities(engine: Engine) -> None:
    token = ask(engine, BEGINNING, top_logprobs=3).get(timeout=60)
    assert isinstance(token, Token) and len(token.top) == 3
    assert token.top[0] == pytest.approx((token.id, token.logprob), abs=1e-5)


def test_one_candidate_or_hardly_any_temperature_is_greedy(engine: Engine) -> None:
    greedy = finish(ask(engine, BEGINNING)).tokens
    cold = (Sampling(temperature=least) for least in (1e-30, 1e-38, 5e-324))
    for only in (Sampling(temperature=2.0, top_k=1), Sampling(temperature=2.0, top_p=0), *cold):
        assert finish(ask(engine, BEGINNING, sampling=only)).tokens == greedy


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_a_penalty_keeps_tokens_from_coming_again(engine: Engine, temperature: float) -> None:
    sampling = Sampling(
        temperature=temperature, presence_penalty=2.0, frequency_penalty=2.0, seed=1
    )
    greedy = finish(ask(engine, BEGINNING, cut="none", max_new_tokens=40)).tokens
    varied = finish(ask(engine, BEGINNING, cut="none", max_new_tokens=40, sampling=sampling))
    assert len(set(varied.tokens)) > len(set(greedy))


def test_a_canceled_request_leaves_the_batch(engine: Engine) -> None:
    ticket = ask(engine, BEGINNING, cut="none", max_new_tokens=200)
    ticket.get(timeout=60)
    ticket.cancel()
    assert finish(ticket).ended == "canceled"
    assert engine.call(lambda: engine.load.running) == 0


def test_a_full_queue_is_refused(loaded: LoadedModel) -> None:
    refused = pytest.raises(QueueFullError, match="requests already wait")
    with Engine(loaded, max_rows=1, max_waiting=1) as engine, refused:
        ask(engine, BEGINNING, cut="none", max_new_tokens=240).get(timeout=60)
        engine.call(lambda: [ask(engine, BEGINNING) for _ in range(2)])  # between two passes


def test_closing_lets_answers_finish_or_cancels_them(loaded: LoadedModel) -> None:
    engine = Engine(loaded, max_rows=1)
    ticket, waiting = (ask(engine, BEGINNING, cut="none", max_new_tokens=9) for _ in range(2))
    engine.close(drain_seconds=60)
    assert len(finish(ticket).tokens) == len(finish(waiting).tokens) == 9
    with pytest.raises(ClewError, match="closed"):
        ask(engine, BEGINNING)
    engine = Engine(loaded, max_rows=1)
    tickets = [ask(engine, BEGINNING, cut="none", max_new_tokens=240) for _ in range(3)]
    engine.close()
    assert {finish(ticket).ended for ticket in tickets} == {"canceled"}


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "message"),
    [
        ([], 5, "empty"),
        ([1, 9999], 5, "0 to 383"),
        ([-1], 5, "0 to 383"),
        ([1] * 250, 7, "limit of 256"),
        ([1], 0, "1 or more"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    engine: Engine, prompt: list[int], new_tokens: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ask(engine, prompt, max_new_tokens=new_tokens)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"top_p": -0.1}, {"top_k": 0}, {"temperature": float("nan")}],
)
def test_impossible_sampling_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_a_failing_request_does_not_fail_others(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(loaded, max_rows=4) as engine:
        monkeypatch.setattr(engine._batch._pool, "_max_cells", 5 * 128)
        prompts = BEGINNING[:7], BEGINNING
        # Both have room at first, but only one of them does in the end.
        shorter, longer = engine.call(
            lambda: [ask(engine, one, cut="none", max_new_tokens=130) for one in prompts]
        )
        with pytest.raises(ClewError, match="memory ran out"):
            finish(longer)
        assert len(finish(shorter).tokens) == 130


def test_the_model_can_be_used_between_passes(engine: Engine, decoder: Decoder) -> None:
    expected = decoder.answer([BEGINNING])[0][0].tokens
    ticket = ask(engine, BEGINNING, cut="none", max_new_tokens=30)
    assert engine.call(lambda: decoder.answer([BEGINNING]))[0][0].tokens == expected
    assert len(finish(ticket).tokens) == 30
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 // 0)


def test_model_is_passed_without_kernels_that_its_gpu_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here, there is no GPU at all."""
    monkeypatch.setattr(passes, "can_replay", lambda _model: True)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    decoder = make_decoder(tiny_loaded(), max_new_tokens=6)
    assert decoder.packed.packs and not decoder.packed.has_kernels


def test_a_model_with_an_attention_of_its_own_gives_what_plain_passes_give() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 384, "hidden_size": 16, "n_layer": 2, "n_head": 2}
    config = BloomConfig(**sizes, initializer_range=0.2, attn_implementation="eager")
    loaded = LoadedModel(BloomForCausalLM(config).eval(), tiny_tokenizer())
    decoder = make_decoder(loaded, max_new_tokens=6)
    prompts = make_prompts(5)
    answers, record = decoder.answer(prompts)
    assert not decoder.packed.packs
    assert worst_error(decoder, prompts, answers, record) < TOLERANCE
    with Engine(loaded, decoder.recording, max_rows=3) as engine:
        tickets = [ask(engine, prompt, max_new_tokens=6) for prompt in prompts]
        assert [finish(ticket).tokens for ticket in tickets] == [one.tokens for one in answers]
