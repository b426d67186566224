"""Streaming datasets for PyTorch's DataLoader: shard by shard, through a shuffle buffer."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from clew.base.errors import InputError
from clew.base.settings import check_least
from clew.loading.buffers import BufferPool, prepare_worker
from clew.loading.order import (
    EpochCounter,
    Order,
    Rank,
    buffered_order,
    current_rank,
    deal_batches,
    deal_shards,
)
from clew.loading.samples import SampleIndex, SampleSource, announce, check_index

_READ_AT_ONCE = 32


class StreamDataset(IterableDataset[Any]):
    """An iterable dataset: every sample once per epoch, in an order that depends only on the seed
    and the epoch.

    Shards come in random order, mixed through a buffer of `shuffle_buffer_size` samples; 0 keeps
    the stored order, for validation. The buffer holds indices, not samples: its size costs no
    memory. Each iteration is a new epoch; `set_epoch` chooses which.

    Give the same `batch_size` as to PyTorch's DataLoader: its workers then split the epoch by
    batches, so that the same batches come in the same order for any number of workers, and several
    ranks together see the batches of one process. Without it the workers split the shards: each
    sample still comes exactly once per epoch, in an order that depends only on the seed and the
    epoch, but the batches change with the number of workers.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        shuffle_buffer_size: int = 1000,
        seed: int = 0,
        max_cache_batches: int = 8,
        rank: Rank | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_least("max_cache_batches", max_cache_batches)
        check_least("seed", seed, 0)
        check_least("shuffle_buffer_size", shuffle_buffer_size, 0)
        check_least("batch_size", batch_size)
        self.source = source
        self.samples = source.open(access="read", max_open=max_cache_batches)
        self.buffers = BufferPool()
        self.shuffle_buffer_size, self.seed, self.batch_size = shuffle_buffer_size, seed, batch_size
        self.rank = rank or current_rank()
        self.epochs = EpochCounter()
        self._resumed: dict[str, Any] | None = None
        self._progress: dict[str, Any] | None = None

    @property
    def index(self) -> SampleIndex:
        """Question ids, labels and splits of all samples."""
        return self.samples.index

    def __len__(self) -> int:
        """The samples that this rank sees in an epoch."""
        return self.rank.count_share(len(self.samples))

    def __getitem__(self, index: int) -> Any:
        return self.samples.read_sample(check_index(index, len(self.samples)), self.buffers)

    def __iter__(self) -> Iterator[Any]:
        iterator = _StreamIterator(self, self._resumed)
        self._resumed, self._progress = None, iterator.progress
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; later iterations continue from there."""
        self.epochs.set(epoch)

    def order(self, epoch: int) -> Order:
        """The indices of all samples, of all ranks, in the order of that epoch."""
        if not self.shuffle_buffer_size:
            return np.arange(len(self.samples))
        shards = self.samples.reader.shards_of(self.index.rows)
        return buffered_order(shards, self.shuffle_buffer_size, seed=self.seed, epoch=epoch)

    def share(self, epoch: int) -> Order:
        """What this rank and worker read in an epoch."""
        order = self.rank.share_all(self.order(epoch), self.batch_size or 1)
        worker = get_worker_info()
        if worker is None:
            return order
        if self.batch_size is not None:
            return deal_batches(order, self.batch_size, worker.id, worker.num_workers)
        shards = self.samples.reader.shards_of(self.index.rows)
        return deal_shards(order, shards, worker.id, worker.num_workers)

    def state_dict(self) -> dict[str, Any]:
        """The position of the last iteration in this process; torchdata's StatefulDataLoader asks
        its workers for it.

        Raises InputError if PyTorch's own workers do the reading: each has its own position.
        """
        if get_worker_info() is None and not self._resumed and self.epochs.are_in_workers():
            raise InputError(
                "the samples are read by worker processes, so this process does not know their "
                "positions: use torchdata's StatefulDataLoader, clew's Loader, or num_workers=0."
            )
        return dict(self._resumed or self._progress or self.new_progress())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the next iteration from a saved position. Raises InputError if the order of
        samples differs.

        Not for PyTorch's own DataLoader with workers, each of which has its own position:
        torchdata's StatefulDataLoader keeps them.
        """
        self.check_state(state)
        self._resumed = dict(state)
        if state["epoch"] is not None:  # even if nothing is left to read
            self.epochs.set(state["epoch"] + 1)

    def new_progress(self) -> dict[str, Any]:
        """The position before the first sample, with everything a position depends on."""
        return {
            "epoch": None,
            "done": 0,
            "workers": 0,
            "batch_size": None,
            "seed": self.seed,
            "samples": len(self.samples),
            "shuffle_buffer_size": self.shuffle_buffer_size,
            "ranks": self.rank.count,
        }

    def check_state(self, state: dict[str, Any]) -> None:
        mine = self.new_progress()
        for name in ("seed", "samples", "shuffle_buffer_size", "ranks"):
            if state[name] != mine[name]:
                raise InputError(
                    f"the saved position belongs to a dataset with {name}={state[name]:,}, but "
                    f"this one has {mine[name]:,}: resume with the same data and settings, or "
                    "start over."
                )


class _StreamIterator:
    """One worker's pass through one epoch. `progress`: the epoch, and the samples given out."""

    def __init__(self, dataset: StreamDataset, resumed: dict[str, Any] | None) -> None:
        self.progress = dataset.new_progress()
        self._dataset = dataset
        self._places: Order | None = None
        self._read_at_once = dataset.batch_size or _READ_AT_ONCE
        self._ready: deque[Any] = deque()
        if resumed is not None:
            self.load_state_dict(resumed)
        prepare_worker()
        if get_worker_info() is not None:  # all workers count, even those that read nothing
            self.progress["epoch"] = dataset.epochs.begin(self.progress["epoch"])

    def __iter__(self) -> "_StreamIterator":
        return self

    def __next__(self) -> Any:
        if self._places is None:
            self._begin()
        if not self._ready:
            self._read_on()
        self.progress["done"] += 1
        return self._ready.popleft()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.progress)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._dataset.check_state(state)
        epoch, worker = self.progress["epoch"], get_worker_info()
        self.progress.update(state)
        if worker is not None and state["epoch"] is None:
            self.progress["epoch"] = epoch
        elif worker is not None and worker.id == 0:
            self._dataset.epochs.set(state["epoch"] + 1)
        self._places = None
        self._ready.clear()

    def _begin(self) -> None:
        self._check_share()
        if get_worker_info() is None:
            self.progress["epoch"] = self._dataset.epochs.begin(self.progress["epoch"])
        self._places = self._dataset.share(self.progress["epoch"])
        announce(self._dataset.samples, self._places[self.progress["done"] :])

    def _check_share(self) -> None:
        """Raise InputError if a saved position does not fit: it counts the samples of one worker's
        share, which depends on the number of workers and the batch size."""
        worker = get_worker_info()
        workers = worker.num_workers if worker else 0
        shared = workers or self._dataset.rank.count > 1
        batch_size = self._dataset.batch_size if shared else None
        mine: dict[str, Any] = {"workers": workers, "batch_size": batch_size}
        saved = {name: self.progress[name] for name in mine}
        if self.progress["done"] and saved != mine:
            raise InputError(
                f"the saved position belongs to {_share(**saved)}, but this loader has "
                f"{_share(**mine)}: resume with the same number of workers and the same dataset "
                "batch_size in torchdata's StatefulDataLoader, or use num_workers=0 both times."
            )
        self.progress.update(mine)

    def _read_on(self) -> None:
        assert self._places is not None
        done = self.progress["done"]
        places = self._places[done : done + self._read_at_once]
        if not len(places):
            raise StopIteration
        self._ready.extend(self._dataset.samples.read_samples(places, self._dataset.buffers))


def _share(workers: int, batch_size: int | None) -> str:
    return f"{workers} workers" + (f" with batches of {batch_size}" if batch_size else "")
