"""Reusable memory for batches, in this process and shared by the workers of PyTorch's DataLoader.
Filling fresh memory takes several times as long as a copy, because the system clears every page. A
buffer returns by itself when the last tensor over it is gone: no batch in use is overwritten."""

import math
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

_SMALLEST_BYTES = 4096
_KEPT_OF_A_SIZE = 8


# The first byte of a buffer says whether the process that it was sent to still uses it.
_FREE, _SENT = 0, 1
_HEADER_BYTES = mmap.PAGESIZE
# Less is sent by value: a message of its own for a file descriptor takes longer.
_SMALLEST_SHARED_BYTES = 1 << 16
# More are only needed where the loader's batches are kept; those go PyTorch's way.
_MOST_OF_A_SIZE = 16


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
        # Free memory is not sent to other processes.
        return partial(BufferPool, pinned=self._pinned), ()

    def _give_back(self, buffer: np.ndarray) -> None:
        free = self._free[len(buffer)]
        if len(free) < _KEPT_OF_A_SIZE:
            free.append(buffer)


def size_class(size: int) -> int:
    """Round a size up by at most a quarter, so that ragged batches of varying size can reuse an
    earlier one's buffer."""
    size = max(size, _SMALLEST_BYTES)
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def prepare_worker() -> None:
    """In a worker of PyTorch's DataLoader: collate into shared memory that is used again, and end
    the worker if a batch cannot be sent, such as for lack of file descriptors. Otherwise only a
    message is printed, and the loader waits for the batch forever; a worker that has ended is an
    error there."""
    if get_worker_info() is None or default_collate_fn_map[torch.Tensor] is collate_tensors:
        return
    # The loader's queue is PyTorch's, and has no other way to hear of it.
    Queue._on_queue_feeder_error = staticmethod(_end)  # type: ignore[attr-defined]
    if hasattr(os, "memfd_create") and os.access(f"/proc/{os.getppid()}/fd", os.X_OK):
        default_collate_fn_map[torch.Tensor] = collate_tensors


def _end(error: Exception, _batch: object) -> None:
    os.write(2, f"clew: a batch could not be sent: {error!r}\n".encode())
    os._exit(1)


class _CollatedTensor(torch.Tensor):
    """A batch, which is sent by value. What is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _SharedTensor(_CollatedTensor):
    """A batch in a buffer."""

    buffer: "_Buffer"
    address: int


class _Buffer:
    """Shared memory of this worker. `is_held` while a tensor of the worker's own is over it."""

    def __init__(self, size: int) -> None:
        self.file, self.is_held = os.memfd_create("clew"), False
        os.truncate(self.file, _HEADER_BYTES + size)
        self.memory = _map(self.file)

    @property
    def is_free(self) -> bool:
        return not self.is_held and self.memory[0] == _FREE

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> _SharedTensor:
        self.is_held = True
        tensor = _view(self.memory, shape, dtype, self._give_back).as_subclass(_SharedTensor)
        tensor.buffer, tensor.address = self, tensor.data_ptr()
        return tensor

    def _give_back(self) -> None:
        self.is_held = False


_buffers: dict[int, list[_Buffer]] = defaultdict(list)


def collate_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """The tensors stacked, as `torch.utils.data.default_collate` does it."""
    first, size = batch[0], sum(one.nbytes for one in batch)
    is_plain = first.layout == torch.strided and not first.is_nested and not first.is_quantized
    if not is_plain or first.device.type != "cpu" or first.requires_grad or not size:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    if size < _SMALLEST_SHARED_BYTES:
        return torch.stack(tuple(batch)).as_subclass(_CollatedTensor)
    buffer = _find_buffer(size_class(size))
    if buffer is None:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    stacked = buffer.take((len(batch), *first.shape), first.dtype)
    return torch.stack(tuple(batch), 0, out=stacked)


def _find_buffer(size: int) -> _Buffer | None:
    buffers = _buffers[size]
    for buffer in buffers:
        if buffer.is_free:
            return buffer
    if len(buffers) == _MOST_OF_A_SIZE:
        return None
    buffers.append(_Buffer(size))
    return buffers[-1]


def _map(file: int) -> mmap.mmap:
    """All its pages at once: one by one, that takes several times as long."""
    return mmap.mmap(file, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _view(
    memory: mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype, give_back: Callable[[], None]
) -> torch.Tensor:
    """A tensor over a buffer, which is given back when the last tensor over it is gone."""
    size = math.prod(shape) * dtype.itemsize
    array = np.frombuffer(memory, np.uint8, size, _HEADER_BYTES)
    weakref.finalize(array, give_back).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _send_value(tensor: _CollatedTensor) -> tuple[Any, ...]:
    content = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return _receive_value, (content, tuple(tensor.shape), tensor.dtype)


def _receive_value(content: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)


def _send(tensor: _SharedTensor) -> tuple[Any, ...]:
    memory = tensor.buffer.memory
    # Moved, since a view of it was sent, or sent before, and not given back yet.
    if tensor.data_ptr() != tensor.address or memory[0] == _SENT:
        return reduce_tensor(tensor.as_subclass(torch.Tensor))
    memory[0] = _SENT
    return _receive, (os.getpid(), tensor.buffer.file, tuple(tensor.shape), tensor.dtype)


def _receive(worker: int, file: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    opened = os.open(f"/proc/{worker}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = _map(opened)
    finally:
        os.close(opened)
    return _view(memory, shape, dtype, partial(memory.__setitem__, 0, _FREE))


ForkingPickler.register(_CollatedTensor, _send_value)
ForkingPickler.register(_SharedTensor, _send)
