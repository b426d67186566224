"""Memory: what a step takes at its peak and a run uses, and memory that runs out, of a device or of
the machine."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Item = TypeVar("Item")
Result = TypeVar("Result")
# Of PyTorch's CPU allocator, and of Python when there is no memory for another stack.
_TEXTS = ("can't allocate memory", "can't start new thread")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory. CUDA has its own exception for it, others only
    a message; during graph capture, another error may follow. Also an error that one of them
    caused."""
    if any(inner and is_out_of_memory(inner) for inner in (error.__cause__, error.__context__)):
        return True
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in _TEXTS)


def none_if_out_of_memory(work: Callable[[], Result]) -> Result | None:
    """The result of the work; None if memory ran out. Then whatever the work held can be freed:
    the error, which would keep it alive, is gone."""
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def free_memory() -> None:
    """Frees what is no longer needed, so that a smaller batch fits."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_in_halves(
    work: Callable[[Sequence[Item]], Result],
    items: Sequence[Item],
    on_full: Callable[[Sequence[Item], Exception], Result | None],
) -> Iterator[Result]:
    """What `work` gives for all items or, where memory runs out, for halves of them, in order.
    `on_full` is told which items did not fit; for a single one, it returns the result, or raises.
    """
    try:
        found: Result | None = work(items)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        found = on_full(items, error)
    if found is not None:
        yield found
        return
    free_memory()
    half = -(-len(items) // 2)
    for some in (items[:half], items[half:]):
        yield from run_in_halves(work, some, on_full)


def measure_peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that `run` held at once, beyond those that existed before."""
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
    """Tracks the memory of every tensor that an operation returns, until it is freed.

    The CPU's allocator keeps no such count. Temporary memory inside an operation is not seen; it is
    small compared with the activations.
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


class MemoryUse:
    """Tracks memory use: on a GPU the peak memory of tensors, otherwise the private memory of the
    process.

    Pages of mapped shards do not count: the system drops them when memory is needed.
    """

    def __init__(self, device: torch.device, peak_bytes: int = 0) -> None:
        self._device, self.peak_bytes = device, peak_bytes
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._process = psutil.Process()

    def look(self) -> int:
        """Bytes now; the maximum is remembered."""
        if self._device.type == "cuda":
            used = torch.cuda.max_memory_allocated(self._device)
        else:
            now = self._process.memory_info()
            used = now.rss - getattr(now, "shared", 0)
        self.peak_bytes = max(self.peak_bytes, used)
        return used
