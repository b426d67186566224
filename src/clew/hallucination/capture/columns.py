"""From the record of a batch to the flat arrays that Arrow takes."""

import numpy as np
import torch
from torch import Tensor

from clew.hallucination.capture.full import FullRecord
from clew.hallucination.capture.record import Reduced, to_float16


def reduced_columns(reduced: Reduced) -> dict[str, np.ndarray]:
    """The array fields as flat numpy arrays on the host, in the types they are stored in."""
    halves = {
        name: to_float16(getattr(reduced, name))
        for name in (
            "last_hidden",
            "answer_hidden",
            "nodes",
            "edge_weight",
            "attention_log_diagonal",
            "laplacian_diagonal",
            "lookback",
        )
    }
    # torch has few operations for uint16; int16 keeps the same bits.
    arrays = _to_host({**halves, "edge_source": reduced.edge_source.to(torch.int16)})
    arrays["edge_source"] = arrays["edge_source"].view(np.uint16)
    return arrays


def _to_host(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy to the host, from a GPU through pinned memory and all at once."""
    host = {}
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host[name] = target.copy_(tensor, non_blocking=True)
        else:
            host[name] = tensor
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return {name: flat(tensor) for name, tensor in host.items()}


def flat(values: Tensor) -> np.ndarray:
    return values.reshape(-1).numpy()


def full_columns(record: FullRecord) -> dict[str, np.ndarray]:
    """All states and maps of a few traces, one trace after the other."""
    rows = range(len(record.lengths))
    return {
        "hidden_states": np.concatenate([flat(record.hidden_states(row)) for row in rows]),
        "attentions": np.concatenate([flat(record.attentions(row)) for row in rows]),
    }
