"""Batches of graphs are exactly those of PyTorch Geometric."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from clew.datasets import (
    GraphSample,
    Loader,
    PreprocessedGNNDataset,
    PreprocessedGNNMapDataset,
    collate,
)
from clew.loading.buffers import BufferPool
from tests.loading.reading import LAYERS
from tests.samples import sequence_of, write_samples


def rival_of(samples: list[GraphSample]) -> Batch:
    """The result of PyG's own collate for the same graphs."""
    return Batch.from_data_list([graph for sample in samples for graph in sample.to_data_list()])


def assert_as_pyg(batch: Batch, samples: list[GraphSample]) -> None:
    rival = rival_of(samples)
    for name in ("x", "edge_index", "edge_attr", "batch", "ptr"):
        assert batch[name].dtype == rival[name].dtype
        assert torch.equal(batch[name], rival[name]), name
    assert (batch.num_graphs, batch.num_nodes) == (rival.num_graphs, rival.num_nodes)
    assert type(batch) is type(rival)
    for one, two in zip(batch.to_data_list(), rival.to_data_list(), strict=True):
        assert set(one.keys()) == set(two.keys())
        assert all(torch.equal(one[name], two[name]) for name in two.keys())  # noqa: SIM118


@pytest.mark.slow
def test_collate_equals_pyg(samples: Path) -> None:
    dataset = PreprocessedGNNMapDataset(samples)
    for first in (0, 40, 89):
        chosen = [dataset[place] for place in range(first, first + 16)]
        batch = collate(chosen)
        assert_as_pyg(batch, chosen)
        assert batch.index.tolist() == list(range(first, first + 16))
        assert batch.label.tolist() == [float(place % 3 == 0) for place in batch.index.tolist()]
        assert batch.question_id == [f"question-{place}" for place in batch.index.tolist()]


@pytest.mark.slow
def test_both_loaders_return_pyg_batches(samples: Path) -> None:
    dataset = PreprocessedGNNMapDataset(samples)
    stream = PreprocessedGNNDataset(samples, shuffle_buffer_size=0)
    for batches in (Loader(dataset, 16, num_workers=1), DataLoader(stream, batch_size=16)):
        for batch in batches:
            chosen = [dataset[place] for place in batch.index.tolist()]
            assert_as_pyg(batch, chosen)
            assert batch.num_graphs == LAYERS * len(chosen)


def test_answers_of_one_token_are_batched(tmp_path: Path) -> None:
    write_samples(tmp_path / "data", shards=1, rows=12, max_tokens=1)
    dataset = PreprocessedGNNMapDataset(tmp_path / "data")
    chosen = [dataset[place] for place in range(12)]
    assert {sample.nodes.shape[0] for sample in chosen} == {LAYERS}
    assert_as_pyg(collate(chosen), chosen)


@pytest.mark.slow
def test_samples_without_edges_are_batched(tmp_path: Path) -> None:
    write_samples(tmp_path / "data", shards=1, rows=60, max_tokens=1)
    dataset = PreprocessedGNNMapDataset(tmp_path / "data")
    bare = [s for s in map(dataset.__getitem__, range(60)) if s.edge_index.shape[1] == 0]
    assert len(bare) > 1
    assert_as_pyg(collate(bare), bare)
    places = np.array([sample.index for sample in bare])
    batch = dataset.samples.read_batch(places, BufferPool())
    assert_as_pyg(batch, bare)
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_attr.shape == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("split", [None, "validation"])
def test_sequences_can_be_loaded_with_the_graphs(samples: Path, split: str | None) -> None:
    dataset = PreprocessedGNNMapDataset(samples, split=split, with_sequence=True)
    stream = PreprocessedGNNDataset(samples, split=split, with_sequence=True)
    for batches in (Loader(dataset, 16), DataLoader(dataset, 16), DataLoader(stream, 16)):
        for batch in batches:
            numbers = [int(name.removeprefix("question-")) for name in batch.question_id]
            expected = np.stack([sequence_of(number, 3, 8) for number in numbers])
            np.testing.assert_array_equal(batch.sequence, expected, strict=True)
            assert_as_pyg(batch, [dataset[place] for place in batch.index.tolist()])


def test_batch_can_be_moved_and_cast_like_pyg_batches(samples: Path) -> None:
    batch = next(iter(Loader(PreprocessedGNNDataset(samples), 4)))
    moved = batch.to("cpu").clone()
    assert torch.equal(moved.ptr, batch.ptr)
    assert torch.equal(batch[0].x, batch.x[: int(batch.ptr[1])])
