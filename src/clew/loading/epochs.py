"""The number of the epoch, counted across the worker processes of PyTorch's loader.

PyTorch tells a data set neither that an epoch begins nor which. The workers of one epoch share a
seed and were started one after the other, which serves as the sign that a new one has begun.
"""

import multiprocessing
import time

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from clew.errors import ClewError

_NEXT, _CURRENT, _SIGN = range(3)
_PATIENCE_SECONDS = 120.0


class EpochCounter:
    """`begin` gives the epoch that an iteration belongs to, the same in all its workers."""

    def __init__(self) -> None:
        self._shared = torch.tensor([0, 0, -1]).share_memory_()
        self._begun = 0

    def set(self, epoch: int) -> None:
        """The next iteration is this epoch; those after it count on."""
        self._shared[_NEXT] = epoch

    def are_in_workers(self) -> bool:
        """Whether the epochs so far began in worker processes."""
        return not self._begun and int(self._shared[_SIGN]) >= 0

    def begin(self, resumed: int | None = None) -> int:
        """`resumed` is the epoch that goes on from a saved position, None for a new one. Of the
        workers, those that had read nothing yet do not know it: the first always does."""
        worker = get_worker_info()
        self._begun += 1  # workers that persist keep their seed
        if worker is None:
            return self._advance(resumed)
        if worker.id == 0:
            self._advance(resumed)
            self._shared[_SIGN] = self._sign(worker)
        elif resumed is None:
            self._wait_for(self._sign(worker))
        else:
            return resumed
        return int(self._shared[_CURRENT])

    def _sign(self, worker: WorkerInfo) -> int:
        # Who seeds PyTorch alike before each epoch gets the same seed: the processes differ.
        process = multiprocessing.current_process()._identity[-1]
        same = (worker.seed - worker.id, process - worker.id, self._begun)
        return hash(same) & (2**62 - 1)

    def _advance(self, resumed: int | None) -> int:
        if resumed is not None:
            self.set(resumed)
        epoch = int(self._shared[_NEXT])
        self._shared[_CURRENT] = epoch
        self._shared[_NEXT] = epoch + 1
        return epoch

    def _wait_for(self, sign: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while int(self._shared[_SIGN]) != sign:
            if time.monotonic() > deadline:
                raise ClewError(
                    "the first worker of the data loader did not start: look for its error above."
                )
            time.sleep(0.001)
