"""What a data set can learn about the PyTorch loader that reads it."""

from types import FrameType


def find_batch_size(caller: FrameType | None) -> int | None:
    """How many samples PyTorch's loader puts into a batch, None when something else is asking.

    PyTorch does not tell a data set. Only when this is known can the workers share out an epoch
    by batches, so that the batches are the same for any number of workers; so it is looked up
    where the loader keeps it while it fetches a batch.
    """
    if caller is None or caller.f_code.co_name != "fetch":
        return None
    if "possibly_batched_index" not in caller.f_locals:
        return None
    asked = caller.f_locals["possibly_batched_index"]
    return len(asked) if isinstance(asked, list) else 1
