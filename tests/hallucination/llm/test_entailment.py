"""`entailment`: the model says which drawn answers entail each other, the same in every batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import TraceBatchLoader
from clew.base.errors import InputError
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.llm.self_evaluation import Comparer, Entailment
from clew.storage.manifest import read_manifest
from tests.builders import make_decoder, tiny_loaded
from tests.hallucination.llm.reference import pass_plainly
from tests.stores import after_one_batch, assert_same_store

pytestmark = pytest.mark.slow

ANSWERS = ["in Paris.", "Lyon", "in Paris.", ""]
PLAN = BatchPlan(rows=4, tokens=2000)
SHORT = Entailment(template="Q: {question} 1: {first} 2: {second} Yes or No?")


def plainly(loaded: Any, question: str, first: str, second: str) -> float:
    text = f"{SHORT.fill(question, first, second)}\nReply:"
    tokens = loaded.tokenizer(f"{text} ")["input_ids"]
    logprobs = pass_plainly(loaded.model, tokens).logprobs[-1]
    yes, no = (loaded.tokenizer(letter)["input_ids"][0] for letter in "YN")
    return float(1 / (1 + np.exp(logprobs[no] - logprobs[yes])))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("same_length", [False, True])
def test_entailment_equals_plain_passes(family: str, same_length: bool) -> None:
    loaded = tiny_loaded(family)
    model = make_decoder(loaded).packed
    plan = BatchPlan(rows=4, tokens=2000, same_length=same_length)
    found = Comparer(SHORT, loaded, chat=False).compare(model, "Where is it?", ANSWERS, plan)
    for row, first in enumerate(ANSWERS):
        for column, second in enumerate(ANSWERS):
            expected = 1 if first == second else plainly(loaded, "Where is it?", first, second)
            assert found[row, column] == pytest.approx(expected, abs=1e-4)


def test_a_pair_that_does_not_fit_is_not_entailed() -> None:
    loaded = tiny_loaded(context=64)
    comparer = Comparer(SHORT, loaded, chat=False)
    model = make_decoder(loaded).packed
    found = comparer.compare(model, "Where?", ["Lyon", "in Paris " * 20], PLAN)
    assert found.tolist() == [[1, 0], [0, 1]]
    assert comparer.compare(model, "Where?", ["Lyon", "Lyon"], PLAN).tolist() == [[1, 1], [1, 1]]


def test_stopped_run_compares_the_same(capture: Any, tmp_path: Path) -> None:
    settings = {"draws": 3, "entailment": True, "num_samples": 6, "generation_batch": 3}
    capture("whole", **settings)
    while not capture(**settings, should_stop=after_one_batch()).finished:
        pass
    assert_same_store(tmp_path / "new", tmp_path / "whole")
    traces = list(TraceBatchLoader(tmp_path / "new").iter_traces())
    assert {trace["entailment"].shape for trace in traces} == {(3, 3)}
    assert all((trace["entailment"].diagonal() == 1).all() for trace in traces)
    assert read_manifest(tmp_path / "new").settings["entailment"] == Entailment().describe()


@pytest.mark.parametrize("draws", [0, 1])
def test_entailment_requires_draws(capture: Any, draws: int) -> None:
    with pytest.raises(InputError, match=f"`draws` is {draws}: draw 2 or more"):
        capture(draws=draws, entailment=True)
