"""The stored fields of every answer, compared with the traces they come from."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.base.progress import Event
from clew.hallucination.capture import extract, job
from clew.hallucination.samples.columns import sort_largest
from clew.hallucination.samples.preprocess import preprocess_store
from clew.hallucination.traces.schema import BY_HEAD
from tests.events import notes
from tests.hallucination.samples.trace_stores import (
    KINDS,
    overwrite_value,
    read_samples,
    read_traces,
    rewrite_rows,
    tiny_preprocess,
)
from tests.stores import assert_same_store, one_thread, tiny_config

pytestmark = pytest.mark.slow

LAYERS, HEADS, NODE_DIM = 3, 4, 4
AS_STORED = {
    **{name: name for name in ("token_logprobs", "token_entropies", "lookback", *BY_HEAD)},
    "state_mean": "answer_hidden",
}


def reference(trace: Any) -> dict[str, np.ndarray]:
    """The computed fields of one trace, in their plain form."""
    nodes, prompt = trace["nodes"].astype(np.float64), trace["prompt_length"]
    return {
        "node_mean": nodes[:, prompt:].mean(1),
        "node_max": nodes[:, prompt:].max(1),
        "node_prompt": nodes[:, prompt - 1],
    }


def test_answers_match_the_traces(preprocessed: Path, compact_store: Path) -> None:
    for row, trace in zip(
        read_samples(preprocessed / "answers"), read_traces(compact_store), strict=True
    ):
        for name in ("question", "category", "accepted_answers", "answer", "stop_reason"):
            assert row[name] == trace[name]
        assert row["prompt_length"] == trace["prompt_length"]
        for name, column in AS_STORED.items():
            np.testing.assert_array_equal(row[name], trace[column].reshape(-1))
        if len(trace["tokens"]) > trace["prompt_length"]:
            for name, expected in reference(trace).items():
                found = row[name].reshape(LAYERS, NODE_DIM)
                np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3, err_msg=name)


def test_an_answer_without_tokens_has_means_of_zero(
    compact_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    tokens = [len(trace["tokens"]) for trace in read_traces(compact_store)]
    store = rewrite_rows(compact_store, tmp_path / "store", 20, prompt_length=tokens)
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    for row in read_samples(tmp_path / "out" / "answers"):
        assert not row["node_mean"].any() and not row["node_max"].any()
        assert row["node_prompt"].any()


def test_traces_of_an_earlier_version_give_the_same_answers(
    preprocessed: Path,
    model_folder: Path,
    questions_file: Path,
    scores_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    describe = job._describe_settings
    monkeypatch.setattr(
        job,
        "_describe_settings",
        lambda *given: {k: v for k, v in describe(*given).items() if k != "eigenvalues"},
    )
    with one_thread():
        extract(tiny_config(model_folder, questions_file, tmp_path / "store"))
    preprocess_store(tiny_preprocess(tmp_path / "store", scores_file, tmp_path / "out"))
    older, newer = (read_samples(folder / "answers") for folder in (tmp_path / "out", preprocessed))
    for one, other in zip(older, newer, strict=True):
        by_head = (LAYERS, HEADS, -1)
        largest = one["laplacian_top"].reshape(by_head)
        np.testing.assert_array_equal(largest[..., :25], other["laplacian_top"].reshape(by_head))
        for name in ("log_diagonal_all", "log_diagonal_answer", "laplacian_answer"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5, err_msg=name)


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
    unknown = ("prompt_length", "lookback", "log_diagonal_answer", "laplacian_answer", "category")
    store = rewrite_rows(compact_store, tmp_path / "store", 20, **dict.fromkeys(unknown, rows))
    events: list[Event] = []
    preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"), events.append)
    assert any(
        "have prompt_length and lookback and log_diagonal_answer and laplacian_answer" in n
        for n in notes(events)
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


def test_answers_can_be_added_to_a_folder_later(
    compact_store: Path, preprocessed: Path, scores_file: Path, tmp_path: Path
) -> None:
    kinds = ("sequences", "graphs")
    preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path, kinds=kinds))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.arrow")}
    splits = (tmp_path / "splits.csv").read_bytes()
    assert preprocess_store(tiny_preprocess(compact_store, scores_file, tmp_path)).made == 70
    assert {path: path.stat().st_ino for path in before} == before
    assert (tmp_path / "splits.csv").read_bytes() == splits
    assert_same_store(tmp_path / "answers", preprocessed / "answers")


@pytest.mark.parametrize("column", ["lookback", "laplacian_top", "token_logprobs"])
def test_trace_with_nan_is_excluded_from_every_kind(
    compact_store: Path, scores_file: Path, tmp_path: Path, column: str
) -> None:
    store = Path(shutil.copytree(compact_store, tmp_path / "store"))
    overwrite_value(store / "batch_0001.arrow", column, 3, 0, np.nan)
    result = preprocess_store(tiny_preprocess(store, scores_file, tmp_path / "out"))
    assert [skip["reason"] for skip in result.skipped] == [f"its {column} contains NaN or infinity"]
    ids = [[r["global_example_id"] for r in read_samples(tmp_path / "out" / k)] for k in KINDS]
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 69
