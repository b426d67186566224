"""Batches of graphs as plain arrays, from the files and from a copy on the device."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clew.datasets import Loader, PreprocessedGNNMapDataset, PreprocessedLSTMMapDataset
from clew.hallucination.samples.resident import ResidentSamples
from tests.samples import write_samples

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "samples")


def open_graphs(folder: Path, flat: bool) -> PreprocessedGNNMapDataset:
    return PreprocessedGNNMapDataset(folder, with_sequence=True, flat=flat)


@pytest.mark.slow
def test_flat_batch_equals_the_pyg_batch(folder: Path) -> None:
    settings = {"batch_size": 16, "shuffle": True, "seed": 3}
    for flat, pyg in zip(
        Loader(open_graphs(folder, True), **settings),
        Loader(open_graphs(folder, False), **settings),
        strict=True,
    ):
        samples = len(pyg.label)
        order = torch.argsort(pyg.edge_index[1], stable=True)
        assert torch.equal(flat["nodes"], pyg.x)
        assert torch.equal(flat["edge_source"].long(), pyg.edge_index[0][order])
        assert torch.equal(flat["edge_target"].long(), pyg.edge_index[1][order])
        assert torch.equal(flat["edge_attr"], pyg.edge_attr[order])
        assert torch.equal(flat["last_node"], (pyg.ptr[1:] - 1).view(samples, -1))
        assert flat["max_degree"] == int(torch.bincount(pyg.edge_index[1]).max())
        assert torch.equal(flat["sequence"], pyg.sequence)
        assert flat["question_id"] == pyg.question_id


@pytest.mark.parametrize("kind", ["graphs", "sequences"])
def test_batches_gathered_on_the_device_equal_those_from_the_files(folder: Path, kind: str) -> None:
    def open_dataset() -> PreprocessedGNNMapDataset | PreprocessedLSTMMapDataset:
        if kind == "graphs":
            return PreprocessedGNNMapDataset(folder, split="train", with_sequence=True, flat=True)
        return PreprocessedLSTMMapDataset(folder, split="train")

    resident = ResidentSamples(open_dataset(), CPU)
    settings = {"batch_size": 16, "shuffle": True, "seed": 3}
    pairs = zip(
        Loader(resident, num_workers=0, **settings), Loader(open_dataset(), **settings), strict=True
    )
    for moved, read in pairs:
        assert moved.keys() == read.keys()
        for name, value in read.items():
            if name == "max_degree":  # that of the whole dataset
                assert moved[name] >= value
            elif isinstance(value, torch.Tensor):
                assert torch.equal(moved[name], value), name
            else:
                assert moved[name] == value


def test_graphs_on_the_device_must_be_flat(folder: Path) -> None:
    with pytest.raises(Exception, match="open them with flat=True"):
        ResidentSamples(open_graphs(folder, False), CPU)


def test_loader_maps_no_more_shards_than_requested(folder: Path) -> None:
    dataset = PreprocessedLSTMMapDataset(folder)
    loader = Loader(dataset, 8, shuffle=True, max_cache_batches=1, num_workers=1)
    for batch in loader:
        assert np.isfinite(batch["sequence"].numpy()).all()
        assert count_mapped(folder) <= 2  # the cached one and its replacement


def count_mapped(folder: Path) -> int:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return len({line.split()[-1] for line in lines if str(folder) in line})


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_threads_return_the_same_epochs(folder: Path, persistent: bool) -> None:
    dataset = PreprocessedLSTMMapDataset(folder)
    settings = {"shuffle": True, "num_workers": 2, "prefetch_factor": 3}
    loader = Loader(dataset, 8, persistent_workers=persistent, **settings)
    plain = Loader(dataset, 8, shuffle=True, num_workers=0)
    for _ in range(3):
        assert [b["index"].tolist() for b in loader] == [b["index"].tolist() for b in plain]
    next(iter(loader))  # interrupted: the threads must not continue reading or hang at the end
