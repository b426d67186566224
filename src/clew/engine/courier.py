"""Brings batches to the device; to a GPU while it works on the batch before."""

from collections import deque
from typing import Any

import torch

from clew.engine.batches import move, named_tensors

# Steps that the host may be ahead of a GPU: enough for it never to wait, few enough that batches
# do not pile up in its memory.
_AHEAD = 2


class Courier:
    """On the CPU a batch is where it must be."""

    def __init__(self, device: torch.device, channels_last: bool) -> None:
        self._device, self._channels_last = device, channels_last

    def bring(self, batch: Any) -> Any:
        """The batch on the device, ready for what is launched next."""
        if not self._channels_last:
            return batch
        return move(batch, self._device, channels_last=True)

    def keep(self, read: Any) -> None:
        """What was launched last works on these batches: they must stay until it has run."""

    def is_idle(self) -> bool:
        """Whether the device has nothing left to do."""
        return True


class _CudaCourier(Courier):
    """Copies on a stream of its own."""

    def __init__(self, device: torch.device, channels_last: bool) -> None:
        super().__init__(device, channels_last)
        self._stream = torch.cuda.Stream(device)
        self._launched: deque[tuple[torch.cuda.Event, Any]] = deque()

    def bring(self, batch: Any) -> Any:
        with torch.cuda.stream(self._stream):
            moved = move(batch, self._device, non_blocking=True, channels_last=self._channels_last)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for _, tensor in named_tensors(moved):
            if tensor.is_cuda:
                tensor.record_stream(current)
        return moved

    def keep(self, read: Any) -> None:
        """A loader fills memory again that nobody refers to: not before it was copied."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._launched.append((event, read))
        if len(self._launched) > _AHEAD:
            self._launched.popleft()[0].synchronize()

    def is_idle(self) -> bool:
        return not self._launched or self._launched[-1][0].query()


def build_courier(device: torch.device, *, channels_last: bool = False) -> Courier:
    kind = _CudaCourier if device.type == "cuda" else Courier
    return kind(device, channels_last)
