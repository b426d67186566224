"""Graphs over all heads and grids of states: batches equal their samples, wherever read."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import StoreError
from clew.datasets import (
    Loader,
    PreprocessedGNNMapDataset,
    PreprocessedGridsMapDataset,
    PreprocessedHeadsMapDataset,
    ResidentSamples,
)
from tests.loading.reading import assert_same_batches
from tests.samples import SampleSizes, graph_of, heads_of, label, question_id, write_samples

SIZES = SampleSizes(layers=3, heads=2, dim=8, features=5, max_tokens=7)
DATASETS = (PreprocessedHeadsMapDataset, PreprocessedGridsMapDataset)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 samples of all kinds. Shared: do not modify."""
    return write_samples(tmp_path_factory.mktemp("full") / "data", heads=True)


def assert_heads(batch: dict[str, Any]) -> None:
    expected = [heads_of(number, SIZES) for number in batch["index"].tolist()]
    first = np.cumsum([0, *(len(graph["nodes"]) for graph in expected)])
    for name in ("nodes", "edge_attr"):
        values = np.concatenate([graph[name] for graph in expected]).astype(np.float16)
        np.testing.assert_array_equal(batch[name], values, strict=True)
    for name in ("edge_source", "edge_target"):
        parts = [graph[name] + start for graph, start in zip(expected, first, strict=False)]
        assert batch[name].tolist() == np.concatenate(parts).tolist()
        assert batch[name].dtype == torch.int32
    graph_of_node = np.repeat(np.arange(len(expected)), np.diff(first))
    assert batch["node_graph"].tolist() == graph_of_node.tolist()
    # The prompt of each is one token long.
    assert batch["is_answer"].tolist() == [i not in first for i in range(first[-1])]


@pytest.mark.slow
def test_batches_of_heads_are_concatenated_samples(full: Path) -> None:
    seen = []
    for batch in Loader(PreprocessedHeadsMapDataset(full), 7, shuffle=True):
        numbers = batch["index"].tolist()
        assert_heads(batch)
        assert (batch["edge_target"].diff() >= 0).all()
        assert batch["label"].tolist() == label(np.array(numbers)).tolist()
        assert batch["question_id"] == [question_id(number) for number in numbers]
        seen += numbers
    assert sorted(seen) == list(range(100))


def test_batches_of_grids_are_the_nodes_of_the_graphs(full: Path) -> None:
    for batch in Loader(PreprocessedGridsMapDataset(full), 7, shuffle=True):
        graphs = [graph_of(number, 3, 5, 7) for number in batch["index"].tolist()]
        nodes = np.concatenate([graph["nodes"] for graph in graphs])
        np.testing.assert_array_equal(batch["nodes"], nodes, strict=True)
        tokens = [int(graph["node_counts"][0]) for graph in graphs]
        assert batch["node_counts"].tolist() == tokens and batch["max_tokens"] == max(tokens)


@pytest.mark.parametrize("dataset", DATASETS)
def test_all_kinds_have_the_same_order(full: Path, dataset: Any) -> None:
    mine, other = dataset(full, split="test"), PreprocessedGNNMapDataset(full, split="test")
    assert mine.index.question_ids.tolist() == other.index.question_ids.tolist()
    assert mine[3]["question_id"] == [other.index.question_ids[3]]
    assert [sample["index"].tolist() for sample in mine.__getitems__([2, 0])] == [[2], [0]]


@pytest.mark.slow
@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize("dataset", DATASETS)
def test_batches_on_the_device_equal_those_from_files(
    full: Path, dataset: Any, low_memory: bool
) -> None:
    data = dataset(full, split="train")
    read = list(Loader(data, 9, shuffle=True, low_memory=low_memory))
    resident = ResidentSamples(data, torch.device("cpu"))
    assert_same_batches(list(Loader(resident, 9, shuffle=True, num_workers=0)), read)


def test_samples_without_edges_are_batched(tmp_path: Path) -> None:
    """An answer of one token attends to nothing before it."""
    folder = write_samples(tmp_path / "data", shards=1, rows=12, max_tokens=1, heads=True)
    data = PreprocessedHeadsMapDataset(folder)
    batches = list(Loader(data, 5))
    assert [len(batch["edge_source"]) for batch in batches] == [0, 0, 0]
    resident = ResidentSamples(data, torch.device("cpu"))
    assert_same_batches(list(Loader(resident, 5, num_workers=0)), batches)


def test_folders_without_heads_are_rejected(folder: Path) -> None:
    with pytest.raises(StoreError, match='has no heads.*extracted with `keep="full"`'):
        PreprocessedHeadsMapDataset(folder)
    shutil.rmtree(folder / "graphs")
    with pytest.raises(StoreError, match="has no graphs.*again without `graphs=False`"):
        PreprocessedGridsMapDataset(folder)
