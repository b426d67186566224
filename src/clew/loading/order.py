"""In which order the samples of an epoch come, and who reads which of them.

The order follows from the seed and the epoch alone. Ranks and workers share it out batch by
batch, so that their number changes who reads a batch, never what is in it.
"""

from dataclasses import dataclass

import numpy as np
import torch.distributed
from jaxtyping import Int64

from clew.errors import InputError

Order = Int64[np.ndarray, " samples"]
Shards = Int64[np.ndarray, " samples"]


def global_order(count: int, *, seed: int, epoch: int) -> Order:
    """All samples, every order equally likely."""
    return _random(seed, epoch).permutation(count)


def buffered_order(shards: Shards, buffer: int, *, seed: int, epoch: int) -> Order:
    """Shard after shard in random order, no sample more than `buffer` places from its own.

    `shards` says in which shard each sample lies. Suits slow disks: only the few shards that the
    buffer spans are read at a time. A buffer as large as the data is a global shuffle.
    """
    if buffer >= len(shards):
        return global_order(len(shards), seed=seed, epoch=epoch)
    random = _random(seed, epoch)
    names, shard_of = np.unique(shards, return_inverse=True)
    by_shard = np.argsort(random.permutation(len(names))[shard_of], kind="stable")
    places = np.arange(len(shards)) + random.random(len(shards)) * buffer
    return by_shard[np.argsort(places, kind="stable")]


def check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed is {seed}: give 0 or more.")


def _random(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One of several processes that train together, each on its part of every batch."""

    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count:
            raise InputError(f"rank {self.number} of {self.count}: ranks count from 0.")

    def share(self, batch: Order) -> Order:
        """This rank's part of a global batch; the parts differ in length by at most one."""
        first = len(batch) * self.number // self.count
        return batch[first : len(batch) * (self.number + 1) // self.count]

    def count_share(self, samples: int) -> int:
        """How many of the samples `share_all` gives this rank, whatever the batch size."""
        return samples * (self.number + 1) // self.count - samples * self.number // self.count

    def share_all(self, order: Order, batch_size: int) -> Order:
        """This rank's parts of all global batches, `batch_size` samples a rank."""
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
    """This process's place among those that train together under torch.distributed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(number=torch.distributed.get_rank(), count=torch.distributed.get_world_size())
    return Rank()
