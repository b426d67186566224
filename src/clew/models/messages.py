"""GINE messages: every node sums relu(neighbour + edge) over whom it looks at.

On the first round the neighbours are data: only the edges' weights have a gradient, so no message
is kept. They are made anew in the backward pass, in pieces that stay in the cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from clew.models.graphs import Neighbours

_CPU_PIECE_BYTES, _GPU_PIECE_BYTES = 1 << 20, 1 << 30


class EdgeMessages(nn.Module):
    """The messages of one round; `edge` turns an edge's attention weight into a vector."""

    def __init__(self, features: int, edge_dim: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_dim, features)

    def from_data(
        self, values: Float[Tensor, "nodes features"], neighbours: Neighbours
    ) -> Float[Tensor, "rows features"]:
        """Sums over rows of `values`, which has no gradient."""
        values = values.to(_working_type(values, self.edge.weight))
        return _SumOverData.apply(values, neighbours, self.edge.weight, self.edge.bias)

    def from_values(
        self, values: Float[Tensor, "rows width features"], neighbours: Neighbours
    ) -> Float[Tensor, "rows features"]:
        """Sums over the neighbours' own `values`, already laid out beside each row."""
        messages = torch.relu(values + self.edge(neighbours.attr.to(self.edge.weight.dtype)))
        return (messages * neighbours.mask[..., None]).sum(1)


class _SumOverData(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, neighbours: Neighbours, weight: Tensor, bias: Tensor
    ) -> Tensor:
        ctx.neighbours = neighbours
        ctx.save_for_backward(values, weight, bias)
        sums = values.new_empty((len(neighbours.nodes), values.shape[1]))
        for piece in _pieces(neighbours, values):
            torch.sum(_messages(values, neighbours, weight, bias, piece), 1, out=sums[piece])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, bias = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for piece in _pieces(neighbours, values):
            messages = _messages(values, neighbours, weight, bias, piece)
            passed = ((messages > 0) * grad[piece, None]).flatten(0, 1)
            grad_bias += passed.sum(0, dtype=grad_bias.dtype)
            grad_weight += passed.T @ neighbours.attr[piece].flatten(0, 1).to(passed.dtype)
        return None, None, grad_weight, grad_bias


def _messages(
    values: Tensor, neighbours: Neighbours, weight: Tensor, bias: Tensor, piece: slice
) -> Tensor:
    """The messages `[rows, width, features]` of some rows, 0 where there is no neighbour."""
    nodes, attr = neighbours.nodes[piece], neighbours.attr[piece].to(values.dtype)
    messages = values.index_select(0, nodes.flatten()).view(*nodes.shape, values.shape[1])
    weight, bias = weight.to(values.dtype), bias.to(values.dtype)
    if attr.shape[-1] == 1:
        messages.addcmul_(attr, weight[:, 0])
    else:
        messages += attr @ weight.T
    messages += bias
    return messages.clamp_(min=0).mul_(neighbours.mask[piece, :, None])


def _pieces(neighbours: Neighbours, values: Tensor) -> Iterator[slice]:
    rows, width = neighbours.nodes.shape
    most = _CPU_PIECE_BYTES if values.device.type == "cpu" else _GPU_PIECE_BYTES
    step = max(1, most // max(1, width * values.shape[1] * values.itemsize))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _working_type(values: Tensor, weight: Tensor) -> torch.dtype:
    """On a CPU single precision, which is quicker there for anything but matrix products."""
    kind = values.device.type
    if kind == "cpu" or not torch.is_autocast_enabled(kind):
        return weight.dtype
    return torch.get_autocast_dtype(kind)
