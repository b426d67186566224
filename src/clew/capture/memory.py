"""When a device's memory is too small."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clew.errors import ClewError


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an exception of its own for it; the CPU's allocator says it in words. While a
    graph is captured, another error may come on top of it."""
    if error.__context__ is not None and is_out_of_memory(error.__context__):
        return True
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@contextmanager
def explained_out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turns running out of memory, where no smaller batch is left to try, into a sentence."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ClewError(
            f"{what} does not fit into the memory of {device}. Use --quantize 4bit, a smaller "
            f"--max-new-tokens, --keep compact, or a device with more memory."
        ) from error


def free_memory() -> None:
    """Give back what is no longer needed, so that a smaller batch finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
