"""Detect and recover from running out of memory, of a device or of the machine."""

import gc

import torch

# Of PyTorch's CPU allocator, and of Python when there is no memory for another stack.
_TEXTS = ("can't allocate memory", "can't start new thread")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory. CUDA has its own exception for it, others only
    a message; during graph capture, another error may follow."""
    if error.__context__ is not None and is_out_of_memory(error.__context__):
        return True
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in _TEXTS)


def free_memory() -> None:
    """Frees what is no longer needed, so that a smaller batch fits."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
