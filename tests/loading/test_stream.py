"""Streaming datasets in PyTorch's own DataLoader, unmodified."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from clew.base.errors import InputError
from clew.datasets import PreprocessedGNNDataset, PreprocessedLSTMDataset, Rank
from tests.forking import FORKSERVER
from tests.loading.reading import (
    COUNT,
    assert_graph,
    assert_same_batches,
    assert_sequences,
    flat,
    places_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WORKERS = [0, 1, 3]
EVERY = list(range(COUNT))


@pytest.fixture(scope="module")
def expected(samples: Path) -> list[list[list[int]]]:
    """The batches of three epochs."""
    loader = DataLoader(PreprocessedLSTMDataset(samples, batch_size=8), batch_size=8)
    return [places_of(loader) for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_the_same_for_any_number_of_workers(
    samples: Path, expected: list[list[list[int]]], workers: int
) -> None:
    loader = DataLoader(
        PreprocessedLSTMDataset(samples, batch_size=8), batch_size=8, num_workers=workers
    )
    batches = list(loader)
    for batch in batches:
        assert_sequences(batch)
    assert places_of(batches) == expected[0]
    assert sorted(flat(places_of(batches))) == EVERY
    assert len(batches) == len(loader) == 14
    assert places_of(loader) == expected[1]


def test_epochs_differ(expected: list[list[list[int]]]) -> None:
    assert expected[0] != expected[1] != expected[2] != expected[0]
    assert all(sorted(flat(epoch)) == EVERY for epoch in expected)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_graph_batches_are_the_same_for_any_number_of_workers(samples: Path, workers: int) -> None:
    whole = list(DataLoader(PreprocessedGNNDataset(samples), batch_size=8))
    loader = DataLoader(
        PreprocessedGNNDataset(samples, batch_size=8), batch_size=8, num_workers=workers
    )
    assert_same_batches(list(loader), whole)
    assert sorted(flat(places_of(whole))) == EVERY


@pytest.mark.slow
def test_samples_can_be_read_one_by_one(samples: Path) -> None:
    dataset = PreprocessedGNNDataset(samples)
    graphs = list(dataset)
    assert len(graphs) == len(dataset) == COUNT
    for graph in graphs:
        assert_graph(graph)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_repeats_an_epoch(
    samples: Path, expected: list[list[list[int]]], workers: int
) -> None:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    for epoch in (2, 0, 0):
        dataset.set_epoch(epoch)
        assert places_of(loader) == expected[epoch]
    assert places_of(loader) == expected[1]


@pytest.mark.slow
def test_persistent_workers_go_through_the_same_epochs(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    assert [places_of(loader) for _ in range(3)] == expected
    dataset.set_epoch(1)
    assert places_of(loader) == expected[1]
    next(iter(loader))  # stopped early: still an epoch
    dataset.set_epoch(0)
    assert places_of(loader) == expected[0]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_stopping_early_starts_the_next_epoch(
    samples: Path, expected: list[list[list[int]]], workers: int
) -> None:
    loader = DataLoader(
        PreprocessedLSTMDataset(samples, batch_size=8), batch_size=8, num_workers=workers
    )
    assert next(iter(loader))["index"].tolist() == expected[0][0]
    assert places_of(loader) == expected[1]


def slow_first_worker(worker: int) -> None:
    """The others are then ready before the first has announced the epoch."""
    if worker == 0:
        time.sleep(0.2)


def slow_second_worker(worker: int) -> None:
    if worker == 1:
        time.sleep(1)


@pytest.mark.slow
def test_worker_that_starts_after_its_epoch_was_stopped_joins_the_next(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    loader = DataLoader(
        PreprocessedLSTMDataset(samples, batch_size=8),
        batch_size=8,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=slow_second_worker,
    )
    assert next(iter(loader))["index"].tolist() == expected[0][0]
    assert places_of(loader) == expected[1]
    assert places_of(loader) == expected[2]


@pytest.mark.slow
def test_seeding_pytorch_the_same_before_each_epoch_loses_nothing(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    for epoch in range(2):
        torch.manual_seed(42)
        loader = DataLoader(dataset, batch_size=8, num_workers=2, worker_init_fn=slow_first_worker)
        assert places_of(loader) == expected[epoch]


@pytest.mark.slow
def test_epoch_stopped_early_counts_when_pytorch_is_seeded_the_same(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    for epoch in range(3):
        torch.manual_seed(42)
        loader = DataLoader(dataset, batch_size=8, num_workers=2)
        assert next(iter(loader))["index"].tolist() == expected[epoch][0]
    torch.manual_seed(42)
    dataset.set_epoch(1)
    assert places_of(DataLoader(dataset, batch_size=8, num_workers=4)) == expected[1]


@pytest.mark.slow
def test_two_iterations_side_by_side_are_two_epochs(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    loaders = [DataLoader(dataset, batch_size=8, num_workers=2) for _ in range(2)]
    found = [places_of(epoch) for epoch in zip(*zip(*loaders, strict=True), strict=True)]
    assert sorted(found) == sorted(expected[:2])


def test_seed_determines_the_order(samples: Path, expected: list[list[list[int]]]) -> None:
    again = DataLoader(PreprocessedLSTMDataset(samples, seed=0), batch_size=8)
    other = DataLoader(PreprocessedLSTMDataset(samples, seed=1), batch_size=8)
    assert places_of(again) == expected[0] != places_of(other)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 3])
def test_without_a_buffer_samples_keep_the_stored_order(samples: Path, workers: int) -> None:
    dataset = PreprocessedLSTMDataset(samples, shuffle_buffer_size=0, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    for _ in range(2):
        assert flat(places_of(loader)) == EVERY


def test_small_buffer_shuffles_shard_after_shard(samples: Path) -> None:
    dataset = PreprocessedLSTMDataset(samples, shuffle_buffer_size=4)
    order = [int(sample["index"]) for sample in dataset]
    assert sorted(order) == EVERY
    assert order != EVERY
    for first in range(0, COUNT, 21):  # the edges of a shard mix with their neighbors
        assert len({place // 21 for place in order[first + 4 : first + 17]}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
def test_batching_can_be_disabled(samples: Path, kind: Callable[..., Any], workers: int) -> None:
    one_by_one = list(kind(samples))
    loader = DataLoader(kind(samples, batch_size=1), batch_size=None, num_workers=workers)
    if kind is PreprocessedGNNDataset:
        assert [sample.index for sample in loader] == [sample.index for sample in one_by_one]
    else:
        assert_same_batches(list(loader), one_by_one)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_drop_last_drops_only_the_remainder(samples: Path, workers: int) -> None:
    whole = places_of(DataLoader(PreprocessedLSTMDataset(samples, batch_size=8), batch_size=8))
    dataset = PreprocessedLSTMDataset(samples, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=workers, drop_last=True)
    assert places_of(loader) == whole[:-1]
    assert len(loader) == 13


class Wrapped(IterableDataset[Any]):
    """A user's own dataset around one of clew's."""

    def __init__(self, inner: PreprocessedLSTMDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for sample in self.inner:
            yield {**sample, "worker": torch.utils.data.get_worker_info().id}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_without_a_batch_size_workers_split_the_shards(samples: Path, workers: int) -> None:
    loader = DataLoader(
        Wrapped(PreprocessedLSTMDataset(samples)), batch_size=8, num_workers=workers
    )
    for _ in range(2):
        pairs = [
            (place, worker)
            for batch in loader
            for place, worker in zip(batch["index"].tolist(), batch["worker"].tolist(), strict=True)
        ]
        assert sorted(place for place, _ in pairs) == EVERY
        shards_of_workers = {(place // 21, worker) for place, worker in pairs}
        assert len(shards_of_workers) == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
def test_plain_loader_returns_each_sample_once_in_reproducible_order(
    samples: Path, kind: Callable[..., Any]
) -> None:
    loaders = [DataLoader(kind(samples), batch_size=8, num_workers=4) for _ in range(2)]
    first, second = ([places_of(loader) for _ in range(2)] for loader in loaders)
    assert first == second
    assert first[0] != first[1]
    assert all(sorted(flat(epoch)) == EVERY for epoch in first)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_together_see_the_batches_of_one_process(samples: Path, workers: int) -> None:
    whole = places_of(DataLoader(PreprocessedLSTMDataset(samples), batch_size=16))
    ranks = [
        PreprocessedLSTMDataset(samples, rank=Rank(number=n, count=2), batch_size=8) for n in (0, 1)
    ]
    parts = [places_of(DataLoader(d, batch_size=8, num_workers=workers)) for d in ranks]
    joined = [first + second for first, second in zip(*parts, strict=True)]
    assert [sorted(batch) for batch in joined] == [sorted(batch) for batch in whole]
    assert sorted(flat(joined)) == EVERY
    assert [len(dataset) for dataset in ranks] == [52, 53]


def test_single_split_is_streamed(samples: Path) -> None:
    parts = [
        PreprocessedLSTMDataset(samples, split=split) for split in ("train", "validation", "test")
    ]
    batches = [batch for part in parts for batch in DataLoader(part, batch_size=8)]
    questions = [question for batch in batches for question in batch["question_id"]]
    assert len(questions) == len(set(questions)) == sum(map(len, parts)) == COUNT
    assert [len(part) > 0 for part in parts] == [True, True, True]


@pytest.mark.slow
def test_workers_that_inherit_nothing_give_the_same_batches(
    samples: Path, expected: list[list[list[int]]]
) -> None:
    loader = DataLoader(
        PreprocessedLSTMDataset(samples, batch_size=8),
        batch_size=8,
        num_workers=2,
        multiprocessing_context=FORKSERVER,  # a process that inherits nothing, as with "spawn"
        persistent_workers=True,
    )
    assert [places_of(loader) for _ in range(2)] == expected[:2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size is -1: it must be 0 or more"),
        ({"max_cache_batches": 0}, "max_cache_batches is 0: it must be 1 or more"),
        ({"seed": -1}, "seed is -1: it must be 0 or more"),
        ({"batch_size": 0}, "batch_size is 0: it must be 1 or more"),
        ({"split": "dev"}, 'split is "dev": choose from: train, validation, test'),
    ],
)
def test_invalid_settings_are_named(samples: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        PreprocessedLSTMDataset(samples, **options)
