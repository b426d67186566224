"""When a device's memory is too small."""

import gc

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an exception of its own for it; the CPU's allocator says it in words. While a
    graph is captured, another error may come on top of it."""
    if error.__context__ is not None and is_out_of_memory(error.__context__):
        return True
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Give back what is no longer needed, so that a smaller batch finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
