"""Memory that runs out, of a device or of the machine, and the collection of garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


def freeze_objects() -> bool:
    """Exclude all objects that exist from later collections of garbage, which stop every thread:
    for half a second each with the libraries that a model needs. False if most were excluded
    already; otherwise, `gc.unfreeze` undoes it."""
    if gc.get_freeze_count() > len(gc.get_objects()):
        return False
    gc.collect()
    gc.freeze()
    return True


@contextmanager
def collect_later() -> Iterator[None]:
    """Collect no garbage meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def free_memory() -> None:
    """Frees what is no longer needed, so that a smaller batch fits."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
