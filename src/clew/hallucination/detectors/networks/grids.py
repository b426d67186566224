"""Grids of states, layers by tokens, of answers of any length: pooled to one size all at once.

A batch holds all grids end to end. Every cell of the result is the largest of a window of layers
and tokens, as PyTorch's adaptive pooling cuts them for one grid.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clew.hallucination.detectors.networks.graphs import round_up


@torch.no_grad()
def pool_grids(
    states: Float[Tensor, "states features"],
    token_counts: Int[Tensor, " batch"],
    *,
    layers: int,
    max_tokens: int,
    size: tuple[int, int],
) -> Float[Tensor, "batch rows columns features"]:
    """The states lie sample by sample, layer by layer, token by token; no sample has more than
    `max_tokens`. They are data: no gradient flows back."""
    rows, columns = size
    over_layers = _pool_layers(states, token_counts, layers, rows)
    first, last = _windows(token_counts[:, None], columns, states.device)
    begins = (token_counts.cumsum(0) - token_counts)[:, None]
    pooled = _max_over(over_layers, begins + first, begins + last, _widest(max_tokens, columns))
    return pooled.transpose(1, 2)


def pad_grids(batch: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """The same batch with its states filled up to one of few sizes, so that a step that was
    recorded for a size can be used again. What is filled in belongs to no sample."""
    count = len(batch["nodes"])
    return {
        **batch,
        "nodes": F.pad(batch["nodes"], (0, 0, 0, round_up(count) - count)),
        "max_tokens": -(-batch["max_tokens"] // columns) * columns,
    }


def _pool_layers(
    states: Float[Tensor, "states features"],
    token_counts: Int[Tensor, " batch"],
    layers: int,
    rows: int,
) -> Float[Tensor, "tokens rows features"]:
    """Windows of layers, for every token of the batch. Tokens that only fill it up get some of
    its states, and are not looked at."""
    ends = token_counts.cumsum(0)
    token = torch.arange(len(states) // layers, device=states.device)
    sample = torch.searchsorted(ends, token, right=True).clamp(max=len(ends) - 1)
    tokens = token_counts[sample]
    begin = (ends[sample] - tokens) * (layers - 1) + token
    first, last = _windows(layers, rows, states.device)
    return _max_over(
        states,
        begin[:, None] + first * tokens[:, None],
        begin[:, None] + last * tokens[:, None],
        _widest(layers, rows),
        step=tokens[:, None],
    )


def _windows(count: Tensor | int, parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and last place of each part when `count` places are cut into parts of one length that
    overlap where it is not whole."""
    part = torch.arange(parts, device=device)
    return part * count // parts, ((part + 1) * count + parts - 1) // parts - 1


def _widest(count: int, parts: int) -> int:
    """No window of up to `count` places is wider."""
    return min(count, -(-count // parts) + 1)


def _max_over(
    values: Tensor, first: Tensor, last: Tensor, width: int, step: Tensor | int = 1
) -> Tensor:
    """The largest of `values` at first, first + step, ... last: at most `width` of them."""
    largest = values[first]
    for k in range(1, width):
        largest = torch.maximum(largest, values[torch.minimum(first + k * step, last)])
    return largest
