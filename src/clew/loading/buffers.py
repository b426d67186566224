"""Reusable memory for batches.

Filling fresh memory takes several times as long as a copy, because the system clears every page
first. A buffer returns to the pool by itself when the last tensor over it is gone, so a batch that
is still in use is never overwritten.
"""

import math
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch

_SMALLEST_BYTES = 4096
_KEPT_OF_A_SIZE = 8


class BufferPool:
    """Hands out CPU tensors from reusable memory. Pinned ones come from PyTorch's own pool, which
    waits for pending copies to a GPU before it reuses their memory."""

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> torch.Tensor:
        """An uninitialized tensor."""
        if self._pinned:
            kind = torch.from_numpy(np.zeros(0, dtype)).dtype
            return torch.empty(shape, dtype=kind, pin_memory=True)
        size = math.prod(shape) * dtype.itemsize
        whole = size_class(size)
        try:
            buffer = self._free[whole].pop()
        except IndexError:
            buffer = np.empty(whole, np.uint8)
        array = buffer[:size].view(dtype).reshape(shape)
        # PyTorch keeps a reference to this very array for as long as its memory is used.
        weakref.finalize(array, self._give_back, buffer).atexit = False
        return torch.from_numpy(array)

    def __reduce__(self) -> tuple[Any, ...]:
        return _new_pool, (self._pinned,)  # free memory is not sent to other processes

    def _give_back(self, buffer: np.ndarray) -> None:
        free = self._free[len(buffer)]
        if len(free) < _KEPT_OF_A_SIZE:
            free.append(buffer)


def _new_pool(pinned: bool) -> BufferPool:
    return BufferPool(pinned=pinned)


def size_class(size: int) -> int:
    """Round a size up by at most a quarter, so that ragged batches of varying size can reuse an
    earlier one's buffer."""
    size = max(size, _SMALLEST_BYTES)
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step
