"""clew's own data loader: whole batches, read ahead by threads, in reusable memory."""

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clew.base.errors import InputError
from clew.datasets import (
    Loader,
    PreprocessedGNNDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
    Rank,
)
from clew.loading.buffers import BufferPool
from tests.loading.reading import (
    COUNT,
    assert_same_batches,
    assert_sequences,
    flat,
    places_of,
)

EVERY = list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_the_same_for_any_number_of_threads(
    samples: Path, kind: Any, shuffle: bool
) -> None:
    whole = list(Loader(kind(samples), 8, shuffle=shuffle, num_workers=0))
    assert sorted(flat(places_of(whole))) == EVERY
    for workers in (1, 3):
        loader = Loader(kind(samples), 8, shuffle=shuffle, num_workers=workers)
        assert_same_batches(list(loader), whole)
        assert len(loader) == len(whole) == 14


def test_batches_hold_the_stored_values(samples: Path) -> None:
    for dataset in (PreprocessedLSTMDataset(samples), PreprocessedLSTMMapDataset(samples)):
        for batch in Loader(dataset, 10, shuffle=True):
            assert_sequences(batch)


def test_every_iteration_is_another_epoch_and_set_epoch_chooses_it(samples: Path) -> None:
    loader = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True, seed=5)
    epochs = [places_of(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    loader.set_epoch(1)
    assert places_of(loader) == epochs[1]
    assert places_of(loader) == epochs[2]


def test_stopping_early_starts_the_next_epoch(samples: Path) -> None:
    loader = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True)
    first, second = places_of(loader), places_of(loader)
    loader.set_epoch(0)
    for batch in loader:
        assert batch["index"].tolist() == first[0]
        break
    assert places_of(loader) == second


def test_threads_end_when_the_loop_is_left(samples: Path) -> None:
    loader = Loader(PreprocessedLSTMDataset(samples), 8, num_workers=3)
    for _ in loader:
        assert loading_threads()
        break
    assert not loading_threads()
    list(loader)
    assert not loading_threads()


def loading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("clew-load")]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batch_in_use_is_never_overwritten(samples: Path, workers: int) -> None:
    loader = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True, num_workers=workers)
    kept = [batch for _ in range(3) for batch in loader]
    part = [batch["sequence"][2:4] for batch in Loader(PreprocessedLSTMDataset(samples), 8)]
    list(loader)
    for batch in kept:
        assert_sequences(batch)
    for first, rows in enumerate(part[:-1]):  # a view alone keeps its batch alive too
        assert_sequences(
            {
                "sequence": rows,
                "index": torch.arange(first * 8 + 2, first * 8 + 4),
                "label": torch.tensor([float(i % 3 == 0) for i in (first * 8 + 2, first * 8 + 3)]),
                "question_id": [f"question-{first * 8 + 2}", f"question-{first * 8 + 3}"],
            }
        )


@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
def test_memory_of_dropped_batches_is_reused(samples: Path, kind: Any) -> None:
    name = "sequence" if kind is PreprocessedLSTMDataset else "x"
    loader = Loader(kind(samples), 8, shuffle=True, num_workers=0)
    places = [batch[name].data_ptr() for _ in range(10) for batch in loader]
    assert len(set(places)) <= len(places) / 4


@pytest.mark.slow
def test_pool_never_hands_out_memory_twice_at_once() -> None:
    pool = BufferPool()
    one = pool.take((3, 5), np.dtype(np.float16))
    two = pool.take((3, 5), np.dtype(np.float16))
    assert one.data_ptr() != two.data_ptr()
    assert (one.shape, one.dtype) == ((3, 5), torch.float16)
    where, view = one.data_ptr(), one[1:]
    del one
    assert pool.take((3, 5), np.dtype(np.float16)).data_ptr() != where
    del view
    gc.collect()
    assert where in {pool.take((15,), np.dtype(np.int64)).data_ptr() for _ in range(2)}
    assert pool.take((2, 0), np.dtype(np.int64)).shape == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [1, 6, 13, 14])
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_resumes_in_the_middle_of_an_epoch(samples: Path, workers: int, taken: int) -> None:
    def open_loader() -> Loader:
        dataset = PreprocessedLSTMDataset(samples)
        return Loader(dataset, 8, shuffle=True, seed=3, num_workers=workers)

    loader = open_loader()
    list(loader)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = loader.state_dict()
    rest, following = places_of(batches), places_of(loader)

    other = open_loader()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert places_of(other) == rest
    assert places_of(other) == following


@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_resumes_with_another_batch_size(samples: Path, drop_last: bool) -> None:
    dataset = PreprocessedLSTMDataset(samples)
    loader = Loader(dataset, 8, shuffle=True)
    batches = iter(loader)
    seen = [next(batches)["index"].tolist() for _ in range(9)]
    other = Loader(dataset, 20, shuffle=True, drop_last=drop_last)
    other.load_state_dict(loader.state_dict())
    rest = places_of(other)
    assert [len(batch) for batch in rest] == ([20] if drop_last else [20, 13])
    assert len(set(flat(seen + rest))) == (92 if drop_last else COUNT)


def test_setting_the_epoch_of_a_loaded_position_keeps_it(samples: Path) -> None:
    """As scripts do that call set_epoch at the top of their loop."""
    loader = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True)
    loader.set_epoch(3)
    batches = iter(loader)
    first = [next(batches)["index"].tolist() for _ in range(2)]
    other = Loader(PreprocessedLSTMDataset(samples), 8, shuffle=True)
    other.load_state_dict(loader.state_dict())
    other.set_epoch(3)
    rest = [batch["index"].tolist() for batch in other]
    assert sorted(sum(first + rest, [])) == list(range(105))


def test_position_in_other_data_or_with_another_seed_is_refused(samples: Path) -> None:
    state = Loader(PreprocessedLSTMDataset(samples), 8, seed=3).state_dict()
    with pytest.raises(
        InputError, match="with seed=3, but this one has 4: resume with the same data"
    ):
        Loader(PreprocessedLSTMDataset(samples), 8, seed=4).load_state_dict(state)
    with pytest.raises(InputError, match="with shuffle=False, but this one has True: resume"):
        Loader(PreprocessedLSTMDataset(samples), 8, seed=3, shuffle=True).load_state_dict(state)
    train = PreprocessedLSTMDataset(samples, split="train")
    with pytest.raises(
        InputError, match=f"with samples=105, but this one has {len(train)}: resume"
    ):
        Loader(train, 8, seed=3).load_state_dict(state)


def test_drop_last_drops_the_incomplete_batch(samples: Path) -> None:
    loader = Loader(PreprocessedLSTMDataset(samples), 8, drop_last=True)
    assert [len(batch) for batch in places_of(loader)] == [8] * 13
    assert len(loader) == 13


def test_ranks_together_see_the_batches_of_one_process(samples: Path) -> None:
    dataset = PreprocessedLSTMDataset(samples)
    whole = places_of(Loader(dataset, 16, shuffle=True))
    loaders = [
        Loader(dataset, 8, shuffle=True, rank=Rank(number=number, count=2)) for number in (0, 1)
    ]
    parts = [places_of(loader) for loader in loaders]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole
    assert [len(loader) for loader in loaders] == [len(whole)] * 2


@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
def test_ranks_stay_in_step_when_too_few_samples_remain_for_all(samples: Path, kind: Any) -> None:
    """52 twice, and one sample over: no rank may end up without a batch, or with an empty one."""
    dataset = kind(samples)
    loaders = [Loader(dataset, 26, rank=Rank(number=number, count=2)) for number in (0, 1)]
    parts = [places_of(loader) for loader in loaders]
    assert sorted(flat(parts[0] + parts[1])) == EVERY
    assert len(parts[0]) == len(parts[1]) == len(loaders[0]) == len(loaders[1])
    assert all(parts[0] + parts[1])


def test_loader_uses_the_rank_of_its_dataset(samples: Path) -> None:
    rank = Rank(number=1, count=2)
    given = Loader(PreprocessedLSTMDataset(samples), 8, rank=rank)
    assert places_of(Loader(PreprocessedLSTMDataset(samples, rank=rank), 8)) == places_of(given)


@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedGNNDataset])
def test_mapping_and_reading_give_the_same_batches(samples: Path, kind: Any) -> None:
    mapped, read = (
        list(Loader(kind(samples), 8, shuffle=True, low_memory=low)) for low in (False, True)
    )
    assert_same_batches(mapped, read)


class Squares:
    """A user's own source of batches."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 10

    def read_batch(self, indices: np.ndarray, _buffers: BufferPool) -> np.ndarray:
        if self.bad in indices:
            raise ZeroDivisionError(f"sample {self.bad} is bad")
        return indices**2


def test_anything_that_reads_batches_can_be_loaded() -> None:
    assert [b.tolist() for b in Loader(Squares(), 4)] == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]


@pytest.mark.parametrize("workers", [0, 2])
def test_error_in_a_thread_reaches_the_caller_in_order(workers: int) -> None:
    seen = []
    with pytest.raises(ZeroDivisionError, match="sample 6 is bad"):
        for batch in Loader(Squares(bad=6), 2, num_workers=workers):
            seen.append(batch.tolist())
    assert seen == [[0, 1], [4, 9], [16, 25]]
    assert not loading_threads()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0: it must be 1 or more"),
        ({"batch_size": -3}, "batch_size is -3: it must be 1 or more"),
        ({"batch_size": 8, "num_workers": -1}, "num_workers is -1: it must be 0 or more"),
        ({"batch_size": 8, "seed": -1}, "seed is -1: it must be 0 or more"),
    ],
)
def test_invalid_settings_are_named(samples: Path, options: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Loader(PreprocessedLSTMDataset(samples), **options)


def test_dataset_without_read_batch_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"TensorDataset .*read_batch"):
        Loader(torch.utils.data.TensorDataset(torch.zeros(3)), 2)  # type: ignore[arg-type]
