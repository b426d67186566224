"""When a device's memory is too small."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clew.errors import ClewError
from clew.memory import is_out_of_memory


@contextmanager
def explained_out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turns running out of memory, where no smaller batch is left to try, into a sentence."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ClewError(
            f'{what} does not fit into the memory of {device}. Use `quantize="4bit"`, a smaller '
            f'`max_new_tokens`, `keep="compact"`, or a device with more memory.'
        ) from error
