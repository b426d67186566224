"""Graphs over all heads equal a slow reference over the attention maps."""

from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.samples.attention_graphs import build_heads_graph
from clew.hallucination.samples.preprocess import preprocess_store
from clew.storage.manifest import MANIFEST_NAME
from clew.storage.verify import verify_store
from tests.hallucination.samples.trace_stores import read_samples, read_traces, tiny_preprocess


def reference_edges(maps: np.ndarray, prompt: int) -> list[tuple[int, int]]:
    """(source, target) of maps `[heads, tokens, tokens]`, one by one."""
    wide = maps.astype(np.float64)
    return [
        (i, j)
        for j in range(maps.shape[1])
        for i in range(j)
        if (wide[:, j, i] >= 0.05).any() and not (i < prompt and j < prompt)
    ]


def assert_edges(source: np.ndarray, attr: np.ndarray, maps: np.ndarray, prompt: int) -> None:
    edges = reference_edges(maps, prompt)
    for (i, j), row in zip(edges, attr, strict=True):
        np.testing.assert_array_equal(row[:-2], maps[:, j, i])
        assert row[-2:].tolist() == [i < prompt, i >= prompt]
    assert source.tolist() == [i for i, _ in edges]


@pytest.mark.slow
def test_heads_equal_the_attention_maps(
    full_store: Path, scores_file: Path, tmp_path: Path
) -> None:
    preprocess_store(tiny_preprocess(full_store, scores_file, tmp_path))
    rows = read_samples(tmp_path / "heads")
    for row, trace in zip(rows, read_traces(full_store), strict=True):
        tokens, prompt = len(trace["tokens"]), trace["prompt_length"]
        maps = trace["attentions"].reshape(-1, tokens, tokens)
        assert row["answer_start"] == prompt
        nodes = row["nodes"].reshape(tokens, -1)
        np.testing.assert_array_equal(nodes, np.stack([np.diag(m) for m in maps], axis=1))
        edges = reference_edges(maps, prompt)
        assert list(zip(row["edge_source"], row["edge_target"], strict=True)) == edges
        assert_edges(row["edge_source"], row["edge_attr"].reshape(-1, len(maps) + 2), maps, prompt)
    assert not verify_store(tmp_path / "heads")


@pytest.mark.parametrize("prompt", [0, 3, 6])
def test_edges_at_the_threshold_are_kept(prompt: int) -> None:
    """Weights around 0.05, also above the diagonal, where nothing attends."""
    near = np.float16(0.05) + np.arange(-3, 4) * np.float16(2**-15)
    maps = np.random.default_rng(0).choice(near.astype(np.float16), (2, 6, 6))
    maps[:, 4, 1] = -0.0
    graph = build_heads_graph(maps, prompt)
    assert graph.target.tolist() == [j for _, j in reference_edges(maps, prompt)]
    assert_edges(graph.source, graph.attr, maps, prompt)


@pytest.mark.slow
def test_compact_traces_have_no_heads(preprocessed: Path) -> None:
    assert not (preprocessed / "heads" / MANIFEST_NAME).exists()
