"""The engine's rows grow and shrink, and memory that runs out ends no more than a request."""

import pytest

from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.engine import batch
from clew.hallucination.live.engine.engine import Engine
from clew.hallucination.live.engine.graphs import GraphPasses
from tests.hallucination.live.engine.test_engine import BEGINNING, ask, finish


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
