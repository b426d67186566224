"""How much memory a step takes at its peak."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def measure_peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Bytes of tensors that `run` had at once, beyond those that were there before."""
    if device.type == "cuda":
        return _measure_cuda(run, device)
    with _LiveTensors() as tensors:
        run()
    return tensors.peak_bytes


def _measure_cuda(run: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class _LiveTensors(TorchDispatchMode):
    """Adds up the memory behind every tensor that an operation gives, until it is let go.

    The CPU's allocator keeps no such count. What an operation needs only inside itself is not
    seen: small beside the activations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = self._live_bytes = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        before = {_memory(tensor)._cdata for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            memory = _memory(tensor)
            if memory._cdata not in before and memory._cdata not in self._known:
                self._add(memory)
        return result

    def _add(self, memory: torch.UntypedStorage) -> None:
        key, size = memory._cdata, memory.nbytes()

        def let_go(_: object) -> None:
            del self._known[key]
            self._live_bytes -= size

        self._known[key] = weakref.ref(memory, let_go)
        self._live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _memory(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
