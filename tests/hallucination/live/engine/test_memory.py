"""The engine's rows grow and shrink, and memory that runs out ends no more than a request."""

from typing import Any

import pytest

from clew.errors import ClewError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.engine import batch
from clew.hallucination.live.engine.engine import Engine
from clew.hallucination.live.engine.graphs import GraphPasses
from clew.hallucination.live.engine.recording import Recording
from clew.hallucination.live.engine.tickets import Ticket
from tests.builders import make_decoder
from tests.hallucination.live.engine.test_engine import BEGINNING, ask, finish


@pytest.fixture(scope="module")
def recording(loaded: LoadedModel) -> Recording:
    decoder = make_decoder(loaded, max_new_tokens=4)
    return Recording(shape=decoder.shape, basis=decoder.basis)


def test_no_captured_pass_outlives_its_rows(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "choose_passes", GraphPasses)
    with Engine(loaded, max_rows=2) as engine:
        room, passes = engine._batch._room, engine._batch._passes
        assert isinstance(passes, GraphPasses)
        answer = finish(ask(engine, BEGINNING))
        before, cache = passes._captured.copy(), room._model.cache
        rows, capacity = cache.rows, cache.capacity
        for sizes in ((0, 0), (rows, capacity)):
            engine.call(lambda sizes=sizes: room._resize(*sizes))
        assert finish(ask(engine, BEGINNING)).tokens == answer.tokens
    assert not set(before.values()) & set(passes._captured.values())


PLACES = {
    "admitting": ("_room", "take_row"),
    "starting": ("_record", "start"),
    "keeping the beginning": ("_record", "copy_tokens"),
    "finishing": ("_record", "finish"),
}


@pytest.mark.parametrize("place", PLACES)
def test_memory_that_runs_out_ends_no_more_than_a_request(
    loaded: LoadedModel, recording: Recording, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    part, method = PLACES[place]
    with Engine(loaded, recording, max_rows=2) as engine:
        owner = getattr(engine._batch, part)
        healthy, left = getattr(owner, method), [1]

        def fail_once(*arguments: Any) -> Any:
            if left.pop() if left else 0:
                raise MemoryError
            return healthy(*arguments)

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
