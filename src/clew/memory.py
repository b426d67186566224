"""Detect and recover from running out of device memory."""

import gc

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory. CUDA has its own exception for it, the CPU allocator
    only a message; during graph capture, another error may follow."""
    if error.__context__ is not None and is_out_of_memory(error.__context__):
        return True
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Frees what is no longer needed, so that a smaller batch fits."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
