"""Values on their way between the host and a GPU, which is not waited for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Reading:
    """Values on their way from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values = pinned.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)
            self._event.record()

    def get(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._values


def to_device(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Numbers on the device; a GPU is not waited for."""
    if device.type != "cuda":
        return torch.tensor(numbers, device=device)
    return torch.tensor(numbers, pin_memory=True).to(device, non_blocking=True)
