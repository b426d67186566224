"""What is stored per head instead of per token: means of the attention's log diagonal and of its
Laplacian, and the largest eigenvalues of the Laplacian. Live answers are reduced the same way."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float16, Int
from torch import Tensor

from clew.hallucination.traces.compact import Reduced, to_float16, to_float32
from clew.hallucination.traces.schema import (
    LAPLACIAN_ANSWER,
    LOG_ALL,
    LOG_ANSWER,
    SPECTRUM,
    TraceShape,
)


def reduce_heads(
    reduced: Reduced,
    tokens: Sequence[int],
    prompts: Sequence[int],
    shape: TraceShape,
    eigenvalues: int,
) -> dict[str, Float16[Tensor, "rows layers heads ..."]]:
    """The columns of a batch of traces with so many tokens, of which so many are the prompt's.
    Layer by layer: sorting takes several times the memory of what is sorted."""
    device = reduced.laplacian_diagonal.device
    lengths, borders = torch.tensor([list(tokens), list(prompts)], device=device)
    places = torch.arange(max(tokens), device=device)
    used = places < lengths[:, None]
    is_answer = used & (places >= borders[:, None])
    logs, eigen = (
        lay_out(to_float16(diagonal), used, shape.layers, shape.heads)
        for diagonal in (reduced.attention_log_diagonal, reduced.laplacian_diagonal)
    )
    pairs = list(zip(logs.split(1, dim=1), eigen.split(1, dim=1), strict=True))
    return {
        LOG_ALL: torch.cat([average(log, used) for log, _ in pairs], dim=1),
        LOG_ANSWER: torch.cat([average(log, is_answer) for log, _ in pairs], dim=1),
        SPECTRUM: torch.cat([largest(value, used, eigenvalues) for _, value in pairs], dim=1),
        LAPLACIAN_ANSWER: torch.cat([average(value, is_answer) for _, value in pairs], dim=1),
    }


def lay_out(
    flat: Float16[Tensor, " layers_heads_tokens"],
    used: Bool[Tensor, "rows tokens"],
    layers: int,
    heads: int,
) -> Float16[Tensor, "rows layers tokens heads"]:
    """A ragged column of several traces, with zeros after each one's tokens."""
    size = (len(used), layers * heads, used.shape[1])
    padded = flat.new_zeros(size).masked_scatter_(used[:, None], flat)
    return padded.unflatten(1, (layers, heads)).mT


def average(
    values: Float16[Tensor, "rows layers tokens features"], tokens: Bool[Tensor, "rows tokens"]
) -> Float16[Tensor, "rows layers features"]:
    """The mean over some tokens; 0 if there are none."""
    total: Float[Tensor, "rows layers features"]
    total = torch.where(tokens[:, None, None], to_float32(values.mT), 0).sum(3)
    return to_float16(total / tokens.sum(1).clamp(min=1)[:, None, None])


def largest(
    values: Float16[Tensor, "rows layers tokens heads"],
    used: Bool[Tensor, "rows tokens"],
    count: int,
) -> Float16[Tensor, "rows layers heads count"]:
    """The largest values of every head, falling; zeros if there are fewer tokens."""
    if values.is_cpu:
        return _find_largest(values, used, count)
    heads = values.mT.float().masked_fill(~used[:, None, None], -torch.inf)
    kept = min(count, used.shape[1])
    falling = heads.sort(dim=-1, descending=True).values[..., :kept]
    lengths: Int[Tensor, " rows"] = used.sum(1)
    exists = torch.arange(kept, device=used.device) < lengths[:, None]
    falling = torch.where(exists[:, None, None], falling, 0)
    return torch.nn.functional.pad(falling, (0, count - kept)).half()


def _find_largest(
    values: Float16[Tensor, "rows layers tokens heads"],
    used: Bool[Tensor, "rows tokens"],
    count: int,
) -> Float16[Tensor, "rows layers heads count"]:
    """On a CPU. NumPy sorts in a tenth of the time: it does not sort the places as well."""
    heads, unused = to_float32(values.mT).numpy(), ~used.numpy()
    is_padded = unused.any()
    if is_padded:
        heads = np.where(unused[:, None, None], -np.inf, heads)
    falling = np.sort(heads, axis=-1)[..., ::-1][..., :count]
    if is_padded:
        lengths = used.shape[1] - unused.sum(axis=1)
        exists = np.arange(falling.shape[-1]) < lengths[:, None]
        falling = np.where(exists[:, None, None], falling, 0)
    found = np.zeros((*falling.shape[:-1], count), np.float32)
    found[..., : falling.shape[-1]] = falling
    return to_float16(torch.from_numpy(found))
