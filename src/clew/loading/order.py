"""The order of an epoch's samples, who reads which of them, and which epoch it is.

The order depends only on the seed and the epoch. Ranks and workers split it batch by batch, so that
their number changes who reads a batch, never its contents.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed
from jaxtyping import Int64
from torch.utils.data import get_worker_info

from clew.base.errors import ClewError, InputError

Order = Int64[np.ndarray, " samples"]
Shards = Int64[np.ndarray, " samples"]
_PATIENCE_SECONDS = 120.0
_KEPT, _MOST_WORKERS = 16, 1024
_NEXT, _ANNOUNCED = range(2)


def global_order(count: int, *, seed: int, epoch: int) -> Order:
    """A random permutation of all samples."""
    return _random(seed, epoch).permutation(count)


def buffered_order(shards: Shards, buffer: int, *, seed: int, epoch: int) -> Order:
    """The shards one after another in random order, with their samples shuffled locally: each moves
    by at most `buffer` positions.

    `shards` gives the shard of each sample. Suits slow disks: only the few shards that the buffer
    spans are read at a time. A buffer as large as the data is a global shuffle.
    """
    if buffer >= len(shards):
        return global_order(len(shards), seed=seed, epoch=epoch)
    random = _random(seed, epoch)
    names, shard_of = np.unique(shards, return_inverse=True)
    by_shard = np.argsort(random.permutation(len(names))[shard_of], kind="stable")
    places = np.arange(len(shards)) + random.random(len(shards)) * buffer
    return by_shard[np.argsort(places, kind="stable")]


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One of several processes that train together, each on its part of every batch: process
    `number` (from 0) of `count`. Raises InputError if `number` is out of range."""

    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise InputError(
                f"rank {self.number} of {self.count} does not exist: ranks count from 0."
            )

    def share(self, batch: Order) -> Order:
        """This rank's part of a global batch; the parts differ in length by at most one."""
        first = len(batch) * self.number // self.count
        return batch[first : len(batch) * (self.number + 1) // self.count]

    def count_share(self, samples: int) -> int:
        """The number of samples that `share_all` gives this rank, which does not depend on the
        batch size."""
        return samples * (self.number + 1) // self.count - samples * self.number // self.count

    def share_all(self, order: Order, batch_size: int) -> Order:
        """This rank's parts of all global batches, concatenated; `batch_size` is per rank."""
        whole = len(order) // (batch_size * self.count) * batch_size * self.count
        parts = order[:whole].reshape(-1, self.count, batch_size)[:, self.number]
        return np.concatenate([parts.reshape(-1), self.share(order[whole:])])


def deal_batches(order: Order, batch_size: int, worker: int, workers: int) -> Order:
    """What one of several workers reads when batch k goes to worker k mod `workers`."""
    return order[np.arange(len(order)) // batch_size % workers == worker]


def deal_shards(order: Order, shards: Shards, worker: int, workers: int) -> Order:
    """What one of several workers reads when shard k goes to worker k mod `workers`."""
    _, shard_of = np.unique(shards, return_inverse=True)
    return order[shard_of[order] % workers == worker]


def current_rank() -> Rank:
    """This process's rank under torch.distributed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(number=torch.distributed.get_rank(), count=torch.distributed.get_world_size())
    return Rank()


class EpochCounter:
    """The epoch number, counted across the worker processes of PyTorch's DataLoader.

    PyTorch tells a dataset neither that an epoch starts nor which one: the first worker announces
    each epoch in shared memory, and the others read it there.
    """

    def __init__(self) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64).share_memory_()
        # The last announcements: the key of their iteration (PyTorch's seed, number of workers,
        # iteration in these processes), and the epoch.
        self._announced = torch.zeros((_KEPT, 4), dtype=torch.int64).share_memory_()
        # Which worker has taken which. Seeds repeat if PyTorch is seeded the same before each
        # epoch, but no worker takes an announcement twice.
        self._taken = torch.ones((_KEPT, _MOST_WORKERS), dtype=torch.bool).share_memory_()
        self._started = False
        self._iterations = 0  # in this worker: more than one if workers persist

    def set(self, epoch: int) -> None:
        """Set the epoch of the next iteration; later iterations continue from there."""
        self._counts[_NEXT] = epoch

    def are_in_workers(self) -> bool:
        """Whether the epochs so far started in worker processes."""
        return not self._started and int(self._counts[_ANNOUNCED]) > 0

    def begin(self, resumed: int | None = None) -> int:
        """Start an iteration and return its epoch. `resumed` is the epoch that continues from a
        saved position, None for a new one.

        Each worker calls it once per iteration, whether or not it reads anything.
        """
        worker = get_worker_info()
        if worker is None:
            self._started = True
            return self._advance(resumed)
        self._iterations += 1
        key = torch.tensor([worker.seed - worker.id, worker.num_workers, self._iterations])
        if worker.id == 0:
            return self._announce(key, self._advance(resumed))
        return self._take(key, worker.id)

    def _advance(self, resumed: int | None) -> int:
        epoch = int(self._counts[_NEXT]) if resumed is None else resumed
        self._counts[_NEXT] = epoch + 1
        return epoch

    def _announce(self, key: torch.Tensor, epoch: int) -> int:
        place = int(self._counts[_ANNOUNCED]) % _KEPT
        self._taken[place] = True  # nobody may read it half-written
        self._announced[place, :3], self._announced[place, 3] = key, epoch
        self._taken[place] = False
        self._counts[_ANNOUNCED] += 1
        return epoch

    def _take(self, key: torch.Tensor, worker: int) -> int:
        """The newest announcement to this worker's loader that it has not taken yet."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            newest = int(self._counts[_ANNOUNCED])
            for place in (number % _KEPT for number in range(newest - 1, newest - 1 - _KEPT, -1)):
                is_mine = bool((self._announced[place, :3] == key).all())
                if is_mine and not self._taken[place, worker]:
                    self._taken[place, worker] = True
                    return int(self._announced[place, 3])
            time.sleep(0.001)
        raise ClewError(
            "the first worker of the data loader did not start: look for its error above."
        )
