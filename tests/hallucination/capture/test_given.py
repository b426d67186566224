"""Answers of a file are read: nothing is generated, and the trace is that of a generated answer."""

from pathlib import Path
from typing import Any

import pytest

import clew
from clew.base.errors import InputError
from clew.hallucination.capture import LoadedModel
from clew.storage.manifest import read_manifest
from tests.builders import tiny_loaded, write_lines
from tests.object_server import ObjectServer

pytestmark = pytest.mark.slow

LOG = [
    {"id": "a", "question": "What is red?", "answer": "a rose", "hallucinated": 0},
    {"id": "b", "question": "What is blue?", "answer": "the sea is green", "hallucinated": 1},
    {"id": "c", "question": "What is green?", "answer": "", "hallucinated": 1},
    {"id": "d", "question": "What is black?", "answer": "coal"},
]


@pytest.fixture
def read(loaded: LoadedModel, tmp_path: Path) -> Any:
    def run(rows: Any, **changes: Any) -> clew.TraceBatchLoader:
        settings = {"model": loaded, "out": tmp_path / "read", "answers": "given", **changes}
        return clew.extract(questions=rows, **settings)

    return run


def test_given_answers_are_stored_with_their_labels(read: Any, tmp_path: Path) -> None:
    traces = list(read(LOG).iter_traces())
    assert [t["answer"] for t in traces] == ["a rose", "the sea is green", "coal"]
    assert [t["given_score"] for t in traces] == [1.0, 0.0, None]
    assert {t["stop_reason"] for t in traces} == {"end"}
    assert [t["token_ends"][-1] for t in traces] == [len(t["answer"]) for t in traces]
    manifest = read_manifest(tmp_path / "read")
    assert manifest.settings["answers"] == "given"
    assert "generation" not in manifest.settings
    [skipped] = manifest.skipped
    assert "(id c)" in skipped["where"] and "its answer is empty" in skipped["reason"]


def test_answers_that_were_generated_give_the_same_trace_when_they_are_read(
    read: Any, compact_store: Path
) -> None:
    made = list(clew.TraceBatchLoader(compact_store).iter_traces())
    rows = [
        {"id": t["question_id"], "question": t["question"], "answer": t["answer"]} for t in made
    ]
    found = {
        t["question_id"]: t
        for t in read(rows, basis=compact_store, node_dim=4, edges_per_token=4).iter_traces()
    }
    same = [(t, found[t["question_id"]]) for t in made if t["question_id"] in found]
    same = [(one, two) for one, two in same if list(one["tokens"]) == list(two["tokens"])]
    assert same
    for one, two in same:
        for name in ("last_hidden", "nodes", "token_logprobs", "token_entropies", "lookback"):
            assert two[name] == pytest.approx(one[name], rel=2e-2, abs=2e-2), name


@pytest.mark.parametrize("where", ["joined", "url"])
def test_answers_are_read_by_a_process_that_joins_and_into_a_url(
    read: Any, tmp_path: Path, object_server: ObjectServer, where: str
) -> None:
    expected = read(LOG, shard_size=2)
    if where == "url":
        found = read(LOG, shard_size=2, out=object_server.new_url())
    else:
        found = read(LOG, shard_size=2, out=tmp_path / "joined", join=True)
    assert found.num_traces == expected.num_traces == 3
    for one, two in zip(expected.iter_traces(), found.iter_traces(), strict=True):
        assert list(one["tokens"]) == list(two["tokens"]) and one["answer"] == two["answer"]
        assert two["last_hidden"] == pytest.approx(one["last_hidden"], rel=1e-2, abs=1e-2)


def test_full_traces_and_self_evaluation_of_given_answers_are_stored(read: Any) -> None:
    traces = list(read(LOG, keep="full", self_evaluation=True, node_dim=4).iter_traces())
    assert [t["hidden_states"].shape[1] for t in traces] == [len(t["tokens"]) for t in traces]
    assert all((t["p_true"] > 0).all() for t in traces)


def test_an_answer_that_exceeds_the_context_is_excluded(read: Any) -> None:
    long = {"question": "What is long?", "answer": "very " * 3000 + "long"}
    [skipped] = read([*LOG[:2], long]).manifest.skipped
    assert "tokens of the answer exceed the model's limit of" in skipped["reason"]


def test_the_basis_is_fitted_on_answers_behind_a_long_source(read: Any, tmp_path: Path) -> None:
    """With the same sources and questions, other answers give another basis."""
    roomy, source = tiny_loaded(context=4096), {"context": "who was where " * 100}
    rows = [one | source for one in LOG[:2]]
    changed = [one | {"answer": "something else"} for one in rows]
    for name, some in (("one", rows), ("two", changed)):
        read(some, model=roomy, out=tmp_path / name, node_dim=4)
    one, two = ((tmp_path / name / "basis.arrow").read_bytes() for name in ("one", "two"))
    assert one != two


def test_a_dry_run_plans_the_reading(read: Any) -> None:
    plan = read(LOG, dry_run=True)
    assert (plan.questions, plan.sample) == (3, 3)
    assert plan.seconds > 0


@pytest.mark.parametrize("setting", ["max_new_tokens", "num_beams", "draws"])
def test_settings_of_generation_are_refused(read: Any, setting: str) -> None:
    with pytest.raises(InputError, match="omit it") as error:
        read(LOG, **{setting: 7})
    assert error.value.setting == setting


def test_answers_with_labels_need_a_choice(read: Any, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "log.jsonl", LOG)
    for rows in (LOG, file):
        with pytest.raises(InputError, match='"answer" as the answer and "hallucinated" as its'):
            read(rows, answers=None)
