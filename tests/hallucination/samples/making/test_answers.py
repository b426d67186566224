"""The stored fields of every answer, compared with the traces they come from."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.hallucination.samples.making import preprocess_store
from clew.hallucination.samples.making.answers import sort_largest
from clew.progress import Event
from tests.events import notes
from tests.hallucination.samples.making.making import (
    KINDS,
    overwrite_value,
    read_samples,
    read_traces,
    rewrite_rows,
    tiny_preprocess,
)
from tests.stores import assert_same_store

LAYERS, HEADS, NODE_DIM = 3, 4, 4
COMPUTED = {
    "log_diagonal_all": (LAYERS, HEADS),
    "log_diagonal_answer": (LAYERS, HEADS),
    "laplacian_top": (LAYERS, HEADS, 100),
    "laplacian_answer": (LAYERS, HEADS),
    "node_mean": (LAYERS, NODE_DIM),
    "node_max": (LAYERS, NODE_DIM),
    "node_prompt": (LAYERS, NODE_DIM),
}


def reference(trace: Any) -> dict[str, np.ndarray]:
    """The computed fields of one trace, in their plain form."""
    log, laplacian = (
        trace[name].astype(np.float64) for name in ("attention_log_diagonal", "laplacian_diagonal")
    )
    nodes, prompt = trace["nodes"].astype(np.float64), trace["prompt_length"]
    top = np.zeros((LAYERS, HEADS, 100))
    top[..., : laplacian.shape[2]] = -np.sort(-laplacian, axis=2)[..., :100]
    return {
        "log_diagonal_all": log.mean(2),
        "log_diagonal_answer": log[..., prompt:].mean(2),
        "laplacian_top": top,
        "laplacian_answer": laplacian[..., prompt:].mean(2),
        "node_mean": nodes[:, prompt:].mean(1),
        "node_max": nodes[:, prompt:].max(1),
        "node_prompt": nodes[:, prompt - 1],
    }


@pytest.mark.slow
def test_answers_match_the_traces(samples: Path, compact_store: Path) -> None:
    for row, trace in zip(
        read_samples(samples / "answers"), read_traces(compact_store), strict=True
    ):
        for name in ("question", "category", "accepted_answers", "answer", "stop_reason"):
            assert row[name] == trace[name]
        assert row["prompt_length"] == trace["prompt_length"]
        for name in ("token_logprobs", "token_entropies", "lookback"):
            np.testing.assert_array_equal(row[name], trace[name].reshape(-1))
        np.testing.assert_array_equal(row["state_mean"], trace["answer_hidden"].reshape(-1))
        if len(trace["tokens"]) > trace["prompt_length"]:
            for name, expected in reference(trace).items():
                found = row[name].reshape(COMPUTED[name])
                np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3, err_msg=name)


@pytest.mark.slow
def test_an_answer_without_tokens_has_means_of_zero(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    tokens = [len(trace["tokens"]) for trace in read_traces(compact_store)]
    store = rewrite_rows(compact_store, tmp_path / "store", 20, prompt_length=tokens)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    for row in read_samples(tmp_path / "out" / "answers"):
        for name in ("log_diagonal_answer", "laplacian_answer", "node_mean", "node_max"):
            assert not row[name].any()
        assert row["log_diagonal_all"].all() and row["node_prompt"].any()


def test_long_answers_keep_the_largest_values() -> None:
    values = np.random.default_rng(0).standard_normal((2, 130)).astype(np.float16)
    expected = np.sort(values, axis=1)[:, :29:-1]
    np.testing.assert_array_equal(sort_largest(values), expected)
    np.testing.assert_array_equal(sort_largest(values[:, :3])[:, 3:], np.zeros((2, 97)))


def test_fields_missing_in_some_traces_are_omitted_with_a_note(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    """As in converted stores, where the boundary between prompt and answer is unknown."""
    rows: list[Any] = [None] * 70
    store = rewrite_rows(
        compact_store, tmp_path / "store", 20, prompt_length=rows, lookback=rows, category=rows
    )
    events: list[Event] = []
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"), events.append)
    assert any(
        "have prompt_length and lookback: the answers are created" in n for n in notes(events)
    )
    found = set(read_samples(tmp_path / "out" / "answers")[0])
    assert {"log_diagonal_all", "laplacian_top", "category", "token_logprobs"} <= found
    left_out = ("lookback", "log_diagonal_answer", "laplacian_answer", "node_mean", "state_mean")
    assert not found & {"prompt_length", *left_out}


def test_drawn_answers_and_contexts_are_kept(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    texts = [[f"a{i}", f"b{i}"] for i in range(70)]
    contexts = [None, *(f"text {i}" for i in range(69))]
    store = rewrite_rows(compact_store, tmp_path / "store", 20, samples=texts, context=contexts)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    answers = read_samples(tmp_path / "out" / "answers")
    assert [row["samples"] for row in answers] == texts
    assert [row["context"] for row in answers] == contexts


@pytest.mark.slow
def test_answers_can_be_added_to_a_folder_later(
    compact_store: Path, samples: Path, scores_file: Path, tmp_path: Path
) -> None:
    kinds = ("sequences", "graphs")
    preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path, kinds=kinds))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.arrow")}
    splits = (tmp_path / "splits.csv").read_bytes()
    assert preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path)).made == 70
    assert {path: path.stat().st_ino for path in before} == before
    assert (tmp_path / "splits.csv").read_bytes() == splits
    assert_same_store(tmp_path / "answers", samples / "answers")


@pytest.mark.slow
@pytest.mark.parametrize("column", ["lookback", "laplacian_diagonal", "token_logprobs"])
def test_trace_with_nan_is_excluded_from_every_kind(
    compact_store: Path, scores_file: Path, tmp_path: Path, column: str
) -> None:
    store = Path(shutil.copytree(compact_store, tmp_path / "store"))
    overwrite_value(store / "batch_0001.arrow", column, 3, 0, np.nan)
    result = preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    assert [skip["reason"] for skip in result.skipped] == [f"its {column} contains NaN or infinity"]
    ids = [[r["global_example_id"] for r in read_samples(tmp_path / "out" / k)] for k in KINDS]
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 69
