"""Batches of PyTorch's DataLoader workers: in memory that is used again, never under a batch that
somebody holds."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from clew.datasets import PreprocessedLSTMDataset, PreprocessedLSTMMapDataset
from tests.loading.reading import assert_same_batches
from tests.samples import write_samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
BATCH = 5


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of 64 KiB, each batch of which goes through shared memory."""
    folder = tmp_path_factory.mktemp("large")
    return write_samples(folder, shards=4, rows=25, layers=32, dim=1024, graphs=False)


@pytest.fixture(params=["iterable", "map-style"])
def dataset(request: pytest.FixtureRequest, large: Path) -> Any:
    if request.param == "map-style":
        return PreprocessedLSTMMapDataset(large)
    return PreprocessedLSTMDataset(large, batch_size=BATCH, shuffle_buffer_size=0)


def test_held_batches_equal_those_without_workers(dataset: Any) -> None:
    expected = list(DataLoader(dataset, BATCH))
    for workers in (1, 3):
        assert_same_batches(list(DataLoader(dataset, BATCH, num_workers=workers)), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch's own memory is used")
def test_memory_of_batches_that_are_gone_is_used_again(dataset: Any) -> None:
    loader = DataLoader(dataset, BATCH, num_workers=1, persistent_workers=True)
    for _ in range(3):  # 60 batches
        for batch in loader:
            batch["sequence"].add_(1)  # a batch is the reader's own
    worker = loader._iterator._workers[0].pid  # type: ignore[union-attr]
    files = [os.readlink(f"/proc/{worker}/fd/{n}") for n in os.listdir(f"/proc/{worker}/fd")]
    assert 1 <= sum("memfd:clew" in name for name in files) <= 8
    expected = list(DataLoader(dataset, BATCH))
    assert_same_batches(list(loader), expected)


def negated(samples: list[Any]) -> dict[str, Any]:
    """Some of its tensors are in shared memory, others are computed from those."""
    batch = default_collate(samples)
    batch["sequence"].neg_()
    first, half = batch["sequence"][:, 0], batch["sequence"] / 2
    return {"first": first, **batch, "half": half}


def test_collate_of_the_users_own_may_change_batches(dataset: Any) -> None:
    expected = [-batch["sequence"] for batch in DataLoader(dataset, BATCH)]
    for _ in range(2):
        loader = DataLoader(dataset, BATCH, num_workers=2, collate_fn=negated)
        for batch, negative in zip(loader, expected, strict=True):
            assert type(batch["sequence"]) is torch.Tensor
            assert torch.equal(batch["sequence"], negative)
            assert torch.equal(batch["first"], negative[:, 0])
            assert torch.equal(batch["half"], negative / 2)


class Kept:
    """A collate function that gives every batch of an epoch twice."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def __call__(self, samples: list[Any]) -> Any:
        self.batches.append(default_collate(samples))
        return self.batches[-1], self.batches[len(self.batches) // 2]


def test_batches_that_a_worker_keeps_stay_as_they_are(dataset: Any) -> None:
    expected = [batch["sequence"] for batch in DataLoader(dataset, BATCH)]
    loader = DataLoader(dataset, BATCH, num_workers=1, collate_fn=Kept())
    for number, (batch, earlier) in enumerate(loader):
        assert torch.equal(batch["sequence"], expected[number])
        assert torch.equal(earlier["sequence"], expected[(number + 1) // 2])
