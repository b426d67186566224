"""The number of the epoch, counted across the worker processes of PyTorch's loader.

PyTorch tells a dataset neither that an epoch begins nor which. The first worker announces each
epoch in memory that all share, and the others take it from there.
"""

import time

import torch
from torch.utils.data import get_worker_info

from clew.errors import ClewError

_PATIENCE_SECONDS = 120.0
_KEPT, _MOST_WORKERS = 16, 1024
_NEXT, _ANNOUNCED = range(2)


class EpochCounter:
    """`begin` gives the epoch that an iteration belongs to, the same in all its workers."""

    def __init__(self) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64).share_memory_()
        # The last announcements: whose they are (PyTorch's seed and number of workers), the epoch.
        self._announced = torch.zeros((_KEPT, 3), dtype=torch.int64).share_memory_()
        # Who has taken which. Seeds repeat where workers persist or someone seeds PyTorch alike
        # before each epoch; but no worker takes an announcement twice.
        self._taken = torch.ones((_KEPT, _MOST_WORKERS), dtype=torch.bool).share_memory_()
        self._begun = False

    def set(self, epoch: int) -> None:
        """The next iteration is this epoch; those after it count on."""
        self._counts[_NEXT] = epoch

    def are_in_workers(self) -> bool:
        """Whether the epochs so far began in worker processes."""
        return not self._begun and int(self._counts[_ANNOUNCED]) > 0

    def begin(self, resumed: int | None = None) -> int:
        """`resumed` is the epoch that goes on from a saved position, None for a new one. Each
        worker calls it once for every iteration, whether or not it reads anything."""
        worker = get_worker_info()
        if worker is None:
            self._begun = True
            return self._advance(resumed)
        key = torch.tensor([worker.seed - worker.id, worker.num_workers])
        if worker.id == 0:
            return self._announce(key, self._advance(resumed))
        return self._take(key, worker.id)

    def _advance(self, resumed: int | None) -> int:
        epoch = int(self._counts[_NEXT]) if resumed is None else resumed
        self._counts[_NEXT] = epoch + 1
        return epoch

    def _announce(self, key: torch.Tensor, epoch: int) -> int:
        place = int(self._counts[_ANNOUNCED]) % _KEPT
        self._taken[place] = True  # nobody is to read it half-written
        self._announced[place, :2], self._announced[place, 2] = key, epoch
        self._taken[place] = False
        self._counts[_ANNOUNCED] += 1
        return epoch

    def _take(self, key: torch.Tensor, worker: int) -> int:
        """The newest announcement to this worker's loader that it has not had yet."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            newest = int(self._counts[_ANNOUNCED])
            for place in (number % _KEPT for number in range(newest - 1, newest - 1 - _KEPT, -1)):
                is_mine = bool((self._announced[place, :2] == key).all())
                if is_mine and not self._taken[place, worker]:
                    self._taken[place, worker] = True
                    return int(self._announced[place, 2])
            time.sleep(0.001)
        raise ClewError(
            "the first worker of the data loader did not start: look for its error above."
        )
