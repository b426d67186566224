"""Faults in the middle of an epoch: always a clear error, never a crash, no sample skipped."""

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_geometric.data  # noqa: F401 - here once, not in every process that is started
from torch.utils.data import DataLoader

from clew.base.errors import StoreError
from clew.datasets import (
    Loader,
    PreprocessedGNNDataset,
    PreprocessedGNNMapDataset,
    PreprocessedLSTMDataset,
    PreprocessedLSTMMapDataset,
)
from tests.loading.children import Outcome, run_in_child
from tests.loading.reading import COUNT, assert_sequences, flat
from tests.samples import sequence_of, write_samples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

LAST = "batch_0004.arrow"
Batches = Callable[[Path], Iterable[Any]]


def mapped(folder: Path) -> Loader:
    return Loader(PreprocessedLSTMDataset(folder), 8, num_workers=0, low_memory=False)


def mapped_by_threads(folder: Path) -> Loader:
    return Loader(PreprocessedLSTMDataset(folder), 8, num_workers=2, low_memory=False)


def read(folder: Path) -> Loader:
    return Loader(PreprocessedLSTMDataset(folder), 8, num_workers=1, low_memory=True)


def mapped_graphs(folder: Path) -> Loader:
    return Loader(PreprocessedGNNDataset(folder), 8, num_workers=1, low_memory=False)


def pytorch_workers(folder: Path) -> DataLoader[Any]:
    dataset = PreprocessedLSTMDataset(folder, shuffle_buffer_size=0, batch_size=8)
    return DataLoader(dataset, batch_size=8, num_workers=2)


def pytorch_map_workers(folder: Path) -> DataLoader[Any]:
    dataset = PreprocessedGNNMapDataset(folder, max_cache_batches=1)
    return DataLoader(dataset, batch_size=8, num_workers=2)


WAYS = [mapped, mapped_by_threads, read, mapped_graphs, pytorch_workers, pytorch_map_workers]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace(path: Path) -> None:
    """Replaces it atomically with a file of a different size."""
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes() * 2)
    other.replace(path)


def read_on(batches: Batches, folder: Path, spoil: Callable[[Path], None]) -> list[int]:
    """Reads a whole epoch; both stores' last shards are damaged after the first batch."""
    seen: list[list[int]] = []
    try:
        for batch in batches(folder):
            if not seen:
                for store in ("sequences", "graphs"):
                    spoil(folder / store / LAST)
            seen.append(batch["index"].tolist())
    except StoreError as error:
        assert flat(seen) == list(range(8 * len(seen))), "something was skipped"
        # PyTorch puts the worker's trace before the sentence.
        sentence = str(error).splitlines()[-1].removeprefix("clew.base.errors.StoreError: ")
        raise StoreError(sentence) from None
    return flat(seen)


@pytest.mark.slow
@pytest.mark.parametrize("batches", WAYS)
@pytest.mark.parametrize("spoil", [cut, empty])
def test_shard_truncated_during_an_epoch_is_reported(
    folder: Path, batches: Batches, spoil: Callable[[Path], None]
) -> None:
    outcome = run_in_child(read_on, batches, folder, spoil)
    assert outcome.exitcode == 0, outcome
    assert outcome.error.startswith(f"StoreError: shard {LAST} in "), outcome.trace
    assert "it was truncated or replaced. Repair the store with clew.verify(" in outcome.error


@pytest.mark.slow
@pytest.mark.parametrize("batches", WAYS)
@pytest.mark.parametrize(
    ("spoil", "says"), [(Path.unlink, "is missing from"), (replace, "it was truncated or replaced")]
)
def test_shard_deleted_or_replaced_during_an_epoch_is_reported(
    folder: Path, batches: Batches, spoil: Callable[[Path], None], says: str
) -> None:
    outcome = run_in_child(read_on, batches, folder, spoil)
    assert outcome.exitcode == 0, outcome
    assert outcome.error.startswith(f"StoreError: shard {LAST} "), outcome.trace
    assert says in outcome.error


@pytest.mark.parametrize("batches", [mapped, mapped_graphs])
def test_shard_truncated_after_it_was_read_is_reported(folder: Path, batches: Batches) -> None:
    """Its pages are already mapped: touching them would kill the process."""
    outcome = run_in_child(cut_between_epochs, batches, folder)
    assert outcome.exitcode == 0, outcome
    assert "has 0 bytes, but the manifest says" in outcome.error, outcome.trace


def cut_between_epochs(batches: Batches, folder: Path) -> None:
    loader = batches(folder)
    assert sum(len(batch["index"]) for batch in loader) == COUNT
    for shard in folder.glob("*/*.arrow"):
        empty(shard)
    list(loader)


def test_open_shard_that_is_deleted_stays_readable(folder: Path) -> None:
    dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=5)
    batches = Loader(dataset, 8, low_memory=True)
    assert sum(len(batch["index"]) for batch in batches) == COUNT
    shutil.rmtree(folder / "sequences")
    for batch in batches:
        assert_sequences(batch)


def test_shard_replaced_by_another_of_its_size_is_detected(folder: Path) -> None:
    store = folder / "sequences"
    one, other = store / "batch_0002.arrow", store / "batch_0003.arrow"
    assert one.stat().st_size == other.stat().st_size
    dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=1)
    assert [dataset[place]["index"] for place in (50, 0)] == [50, 0]
    shutil.copy(other, store / "copy")
    (store / "copy").replace(one)
    with pytest.raises(StoreError, match=r"shard batch_0002.arrow .*replaced"):
        dataset[50]


def test_shard_missing_from_the_start_is_reported(folder: Path) -> None:
    (folder / "sequences" / LAST).unlink()
    for batches in (mapped, read):
        with pytest.raises(StoreError, match=f"shard {LAST} is missing from .*restore the file"):
            list(batches(folder))


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "data"
    return write_samples(folder, shards=60, rows=2, graphs=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "places", [list(range(120)), np.random.default_rng(0).permutation(240).tolist()]
)
def test_epoch_runs_with_fewer_open_files_than_shards(many_shards: Path, places: list[int]) -> None:
    outcome = run_in_child(read_with_few_files, many_shards, places)
    assert outcome.error == "", outcome.trace
    assert outcome.value == len(places)


def read_with_few_files(folder: Path, places: list[int]) -> int:
    """50 shards may be open, but only 20 files."""
    allow_more_files(20)
    dataset = PreprocessedLSTMMapDataset(folder, max_cache_batches=50)
    for place in places:
        values = dataset[place % 120]["sequence"]
        np.testing.assert_array_equal(values, sequence_of(place % 120, 3, 8))
    return len(places)


def test_reading_runs_with_fewer_open_files_than_shards(many_shards: Path) -> None:
    """Also where opening a new shard, not reading it, reaches the limit."""
    outcome = run_in_child(read_batches_with_few_files, many_shards)
    assert outcome.value == 120, outcome.trace


def read_batches_with_few_files(folder: Path) -> int:
    allow_more_files(20)
    loader = Loader(PreprocessedLSTMDataset(folder), 1, num_workers=0, low_memory=True)
    return sum(len(batch["index"]) for batch in loader)


def test_mapping_needs_no_open_files(many_shards: Path) -> None:
    outcome = run_in_child(map_with_few_files, many_shards)
    assert outcome.value == 120, outcome.trace


def map_with_few_files(folder: Path) -> int:
    dataset = PreprocessedLSTMDataset(folder)
    next(iter(dataset))  # what is imported at the first use opens files of its own
    allow_more_files(4)
    loader = Loader(dataset, 8, shuffle=True, low_memory=False)
    return sum(len(batch["index"]) for batch in loader)


def test_running_out_of_file_descriptors_is_reported(many_shards: Path) -> None:
    outcome = run_in_child(read_without_files, many_shards)
    assert outcome.error.startswith("TooManyFilesError: batch_"), outcome.trace
    assert "too many open files. Raise this process's limit" in outcome.error


def read_without_files(folder: Path) -> None:
    dataset = PreprocessedLSTMMapDataset(folder)
    allow_more_files(0)
    dataset[3]


def allow_more_files(count: int) -> None:
    """The limit is on the highest descriptor number: the gaps below are filled first."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    while os.open("/dev/null", os.O_RDONLY) < highest:
        pass
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + count
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


class Unsendable:
    def __reduce__(self) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PreprocessedLSTMDataset, PreprocessedLSTMMapDataset])
def test_batch_that_a_worker_cannot_send_is_an_error_not_an_endless_wait(
    samples: Path, kind: Any
) -> None:
    outcome: Outcome = run_in_child(receive_nothing, samples, kind)
    assert outcome.error.startswith("RuntimeError: DataLoader worker (pid"), outcome


def receive_nothing(folder: Path, kind: Any) -> None:
    loader = DataLoader(kind(folder), 2, num_workers=2, collate_fn=lambda _: Unsendable())
    list(loader)


@pytest.mark.slow
def test_killed_worker_is_an_error_not_an_endless_wait(samples: Path) -> None:
    outcome: Outcome = run_in_child(kill_a_worker, samples)
    assert outcome.error.startswith("RuntimeError: DataLoader worker (pid"), outcome


def kill_a_worker(folder: Path) -> None:
    dataset = PreprocessedLSTMDataset(folder, shuffle_buffer_size=0)
    batches = iter(DataLoader(dataset, batch_size=2, num_workers=2))
    next(batches)
    worker = batches._workers[1]  # type: ignore[attr-defined]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()  # a batch that is being fetched while it dies would be another error
    list(batches)
