"""Samples by index: correct values, few open files, little memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from clew.base.errors import InputError
from clew.datasets import (
    PreprocessedGNNDataset,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from tests.loading.children import run_in_child
from tests.loading.reading import COUNT, assert_graph, assert_sequences, flat, places_of
from tests.samples import label, question_id, sequence_of, write_samples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def test_any_sample_can_be_read_by_index(samples: Path) -> None:
    dataset = PreprocessedLSTMMapDataset(samples)
    assert len(dataset) == COUNT
    for place in np.random.default_rng(0).permutation(COUNT).tolist():
        sample = dataset[place]
        np.testing.assert_array_equal(sample["sequence"], sequence_of(place, 3, 8), strict=True)
        assert sample["label"] == label(np.array(place))
        assert sample["index"] == place
        assert sample["question_id"] == question_id(place)


def test_any_graph_can_be_read_by_index(samples: Path) -> None:
    dataset = PreprocessedGNNMapDataset(samples)
    for place in (0, 50, 104, 20, 21):
        assert_graph(dataset[place])
        assert dataset[place].index == place


@pytest.mark.parametrize("kind", [PreprocessedLSTMMapDataset, PreprocessedGNNMapDataset])
def test_negative_indices_count_from_the_end(samples: Path, kind: Any) -> None:
    dataset = kind(samples)
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(
            IndexError, match=f"there are 105 samples: index {wrong} is out of range"
        ):
            dataset[wrong]
    last = dataset[-1]
    found = last["index"] if isinstance(last, dict) else last.index
    assert found == COUNT - 1


@pytest.mark.slow
def test_subset_names_its_samples_like_the_dataset(samples: Path) -> None:
    dataset = PreprocessedLSTMMapDataset(samples)
    (batch,) = DataLoader(Subset(dataset, [3, -1]), batch_size=2)
    assert batch["index"].tolist() == [3, COUNT - 1]
    assert_sequences(batch)
    with pytest.raises(IndexError, match="there are 105 samples: index 105 is out of range"):
        list(DataLoader(Subset(dataset, [COUNT]), batch_size=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_pytorch_loader_can_shuffle_the_dataset(samples: Path, workers: int) -> None:
    dataset = PreprocessedLSTMMapDataset(samples)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    batches = list(loader)
    for batch in batches:
        assert_sequences(batch)
    assert sorted(flat(places_of(batches))) == list(range(COUNT))
    assert places_of(batches) != places_of(loader)


def test_single_split_is_read(samples: Path) -> None:
    whole = PreprocessedLSTMMapDataset(samples)
    for number, split in enumerate(("train", "validation", "test")):
        part = PreprocessedLSTMMapDataset(samples, split=split)
        wanted = np.flatnonzero(whole.index.splits == number)
        assert [part[place]["question_id"] for place in range(len(part))] == [
            question_id(int(place)) for place in wanted
        ]
        for place, number_of_all in enumerate(wanted):
            np.testing.assert_array_equal(
                part[place]["sequence"], sequence_of(int(number_of_all), 3, 8)
            )


def test_invalid_settings_are_named(samples: Path) -> None:
    with pytest.raises(InputError, match='split is "val": choose from: train, validation, test'):
        PreprocessedGNNMapDataset(samples, split="val")
    with pytest.raises(InputError, match="max_cache_batches is 0: it must be 1 or more"):
        PreprocessedLSTMMapDataset(samples, max_cache_batches=0)
    for kind in (PreprocessedLSTMDataset, PreprocessedLSTMMapDataset, PreprocessedGNNDataset):
        with pytest.raises(InputError, match="max_cache_batches is 0"):
            kind(samples, 0)  # by position, as in the original class


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_no_more_shards_are_open_than_allowed(folder: Path, limit: int) -> None:
    dataset = PreprocessedGNNMapDataset(folder, max_cache_batches=limit)
    counts = set()
    for place in np.random.default_rng(1).integers(0, COUNT, 60).tolist():
        assert_graph(dataset[place])
        counts.add(open_shards(folder))
    assert counts <= set(range(limit + 1))
    assert max(counts) == limit
    del dataset
    assert open_shards(folder) == 0


def open_shards(folder: Path) -> int:
    """Shards that this process holds open or mapped."""
    opened = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if is_link(entry)]
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return len({path for path in {*opened, *mapped} if path.startswith(str(folder))})


def is_link(entry: os.DirEntry[str]) -> bool:
    return os.path.lexists(entry.path)  # the descriptor of the listing itself is closed by now


SHARD_MIB = 4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 shards of 4 MiB."""
    folder = tmp_path_factory.mktemp("large") / "data"
    return write_samples(
        folder, shards=16, rows=32, layers=8, dim=8192, batch_rows=32, graphs=False
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(large: Path) -> None:
    """Twice over 64 MiB in random order, within the two shards that may be open."""
    outcome = run_in_child(read_all, large)
    assert outcome.error == ""
    assert outcome.value < 2 * SHARD_MIB


def read_all(folder: Path) -> float:
    """How many MiB more this process holds after reading everything; mapped files count."""
    dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=2)
    dataset[0]
    me = psutil.Process()
    before, most = me.memory_full_info().pss, 0
    for turn in range(2):
        for at, place in enumerate(np.random.default_rng(turn).permutation(len(dataset)).tolist()):
            dataset[place]
            if at % 64 == 0:
                most = max(most, me.memory_full_info().pss)
    return (most - before) / 2**20


@pytest.mark.parametrize("kind", [PreprocessedLSTMMapDataset, PreprocessedGNNMapDataset])
def test_changing_a_sample_in_place_changes_only_that_sample(samples: Path, kind: Any) -> None:
    """As augmentations do: the dataset gives the stored values the next time."""
    dataset = kind(samples)
    for name in ("sequence", "label") if kind is PreprocessedLSTMMapDataset else ("nodes", "label"):
        before = value_of(dataset[0], name).clone()
        value_of(dataset[0], name).fill_(7)
        assert torch.equal(value_of(dataset[0], name), before), name


def value_of(sample: Any, name: str) -> torch.Tensor:
    return sample[name] if isinstance(sample, dict) else getattr(sample, name)


def test_sample_outlives_its_file(folder: Path) -> None:
    """Truncating the file does not kill a process that still holds a sample of it."""
    outcome = run_in_child(look_at_a_sample_of_a_cut_file, folder)
    assert outcome.exitcode == 0, outcome
    assert outcome.value == sequence_of(3, 3, 8).tolist()


def look_at_a_sample_of_a_cut_file(folder: Path) -> list[list[float]]:
    dataset = PreprocessedLSTMMapDataset(folder)
    sample = dataset[3]
    os.truncate(folder / "sequences" / "batch_0000.arrow", 0)
    return sample["sequence"].tolist()
