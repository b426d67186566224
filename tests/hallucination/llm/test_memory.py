"""The engine's rows grow and shrink, and memory that runs out ends no more than a request."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from clew.base.errors import ClewError, InputError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.llm import memory, scheduler
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.graphs import GraphPasses
from clew.hallucination.llm.memory import cache_bytes
from clew.hallucination.llm.passes import PackedModel
from clew.hallucination.llm.recording import Recording
from clew.hallucination.llm.requests import Finished, Ticket
from tests.builders import make_decoder
from tests.hallucination.llm.test_engine import BEGINNING, ask, finish

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recording(loaded: LoadedModel) -> Recording:
    decoder = make_decoder(loaded, max_new_tokens=4)
    return Recording(shape=decoder.shape, basis=decoder.basis)


def test_no_captured_pass_outlives_its_rows(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "choose_passes", GraphPasses)
    with Engine(loaded, max_rows=2) as engine:
        pool, passes = engine._batch._pool, engine._batch._passes
        assert isinstance(passes, GraphPasses)
        answer = finish(ask(engine, BEGINNING))
        before, cache = passes._captured.copy(), pool._model.cache
        rows, capacity = cache.rows, cache.capacity
        for sizes in ((0, 0), (rows, capacity)):
            engine.call(lambda sizes=sizes: pool._resize(*sizes))
        assert finish(ask(engine, BEGINNING)).tokens == answer.tokens
    assert not set(before.values()) & set(passes._captured.values())


def test_captured_passes_share_the_memory_of_their_weights(loaded: LoadedModel) -> None:
    passes = GraphPasses(PackedModel(loaded.model), None, 2)
    large, small = passes.weights_of(8, 128), passes.weights_of(2, 64)
    assert large.shape[1::2] == (8, 128) and small.shape[1::2] == (2, 64)
    assert small.is_contiguous() and small.data_ptr() == large.data_ptr()
    passes.forget()
    assert passes.weights_of(2, 64).untyped_storage().nbytes() < large.nbytes


@pytest.mark.parametrize("ahead", [False, True])
def test_a_long_prompt_has_room_after_many_short_ones(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    if ahead:
        monkeypatch.setattr(scheduler, "choose_passes", GraphPasses)
    with Engine(loaded, max_rows=4) as engine:
        alone = finish(ask(engine, BEGINNING * 15, max_new_tokens=3)).tokens
    with Engine(loaded, max_rows=4) as engine:
        monkeypatch.setattr(engine._batch._pool, "_max_cells", 5 * 128)
        prompts = [*([BEGINNING] * 4), BEGINNING * 15, BEGINNING]
        tickets = [ask(engine, prompt, max_new_tokens=3) for prompt in prompts]
        answers = [finish(ticket).tokens for ticket in tickets]
    assert answers[4] == alone and answers[5] == answers[0]


def test_a_long_prompt_that_waits_for_room_holds_up_no_short_one(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is memory for two rows, of which one is left to short prompts."""
    monkeypatch.setattr(scheduler, "_LONG", {"cpu": 100, "cuda": 100})
    ended: list[int] = []
    with Engine(loaded, max_rows=4) as engine:
        monkeypatch.setattr(engine._batch._pool, "_max_cells", 3 * 256)

        def submit() -> list[Ticket]:
            prompts = [[5, *BEGINNING * 15], [6, *BEGINNING * 15], [7, *BEGINNING * 15], BEGINNING]
            sizes = (40, 5, 5, 3)
            found = [
                ask(engine, prompt, cut="none", max_new_tokens=size)
                for prompt, size in zip(prompts, sizes, strict=True)
            ]
            for number, ticket in enumerate(found):
                ticket.on_event(lambda event, n=number: _note(ended, event, n))
            return found

        engine.call(submit)
        engine.close(drain_seconds=60)
    assert sorted(ended) == [0, 1, 2, 3] and ended.index(3) < ended.index(0)


def _note(ended: list[int], event: object, number: int) -> None:
    if isinstance(event, Finished):
        ended.append(number)


def test_a_prompt_that_one_row_has_no_room_for_is_refused(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = int(300 * cache_bytes(loaded.model) / memory._MEMORY_SHARE)
    monkeypatch.setattr(memory, "_free_memory", lambda _: free)
    with Engine(loaded, max_rows=4) as engine:
        assert engine.max_tokens == 128
        with pytest.raises(InputError, match="limit of 128"):
            ask(engine, BEGINNING * 11, max_new_tokens=20)
        assert len(finish(ask(engine, BEGINNING * 11, max_new_tokens=7)).tokens) == 7


PLACES = {
    "admitting": ("_pool", "take_row"),
    "starting": ("_record", "start"),
    "keeping the beginning": ("_record", "copy_tokens"),
    "finishing": ("_record", "copy"),
}


@pytest.mark.parametrize("place", PLACES)
def test_memory_that_runs_out_ends_no_more_than_a_request(
    loaded: LoadedModel, recording: Recording, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    part, method = PLACES[place]
    with Engine(loaded, recording, max_rows=2) as engine:
        owner = getattr(engine._batch, part)
        healthy, left = getattr(owner, method), [1]

        def fail_once(*arguments: Any, **named: Any) -> Any:
            if left.pop() if left else 0:
                raise MemoryError
            return healthy(*arguments, **named)

        monkeypatch.setattr(owner, method, fail_once)
        prompts = [[*BEGINNING, number] for number in (1, 2)]
        # Between two passes: they start together, and share their beginning.
        tickets = engine.call(lambda: [ask(engine, one, max_new_tokens=3) for one in prompts])
        ends = [_end(ticket) for ticket in tickets]
        assert ends.count("memory ran out") == (place != "keeping the beginning")
        assert _end(ask(engine, BEGINNING, max_new_tokens=3)) == "answered"
        assert not left and engine.is_running
    assert not engine.is_running


def _end(ticket: Ticket) -> str:
    try:
        return "answered" if finish(ticket) else ""
    except ClewError as error:
        return str(error).split(" while")[0]


def test_a_call_is_answered_even_if_the_engine_dies(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = Engine(loaded, max_rows=1)
    monkeypatch.setattr(engine._batch, "admit", _die)
    with pytest.raises(ClewError, match="closed"):
        engine.call(lambda: 7)
    engine._thread.join()
    assert not engine.is_running


def _die(*_: Any) -> None:
    raise AssertionError


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_what_exists_is_not_searched_for_garbage_while_answers_are_generated(
    loaded: LoadedModel,
) -> None:
    with Engine(loaded, max_rows=1):
        with Engine(loaded, max_rows=1):
            pass
        assert gc.get_freeze_count() > len(gc.get_objects())
    assert gc.get_freeze_count() < len(gc.get_objects())
