"""A batch of attention graphs on the device, and the part of it that a readout can see.

All layers of all samples are one graph. Two rounds of message passing read at the last token depend
on that token, the tokens it attends to, and those that these attend to: nothing else is computed.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Padding edges point to a node that no batch has.
NO_NODE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """The tokens that some nodes attend to, `width` per node; the mask marks the real ones."""

    nodes: Int[Tensor, "rows width"]
    attr: Float[Tensor, "rows width edge_features"]
    mask: Bool[Tensor, "rows width"]


@dataclass(frozen=True, kw_only=True)
class AttentionGraphs:
    """Edges go from the attended token (source) to the attending one (target), and are sorted by
    target. `last` is the node of the last token of each sample and layer."""

    nodes: Float[Tensor, "nodes features"]
    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    attr: Float[Tensor, "edges edge_features"]
    last: Int[Tensor, "batch layers"]
    max_degree: int  # no node attends to more

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any]) -> "AttentionGraphs":
        """Take a flat batch of clew's loader, or a PyG batch of `clew.datasets.collate`."""
        if "edge_index" in batch:
            return _from_pyg(batch)
        return cls(
            nodes=batch["nodes"],
            source=batch["edge_source"],
            target=batch["edge_target"],
            attr=batch["edge_attr"],
            last=batch["last_node"],
            max_degree=batch["max_degree"],
        )

    def neighbors(self, rows: Int[Tensor, " rows"]) -> Neighbors:
        """The nodes that `rows` attend to. Positions beyond a node's own edges hold node 0."""
        first = torch.searchsorted(self.target, rows)
        end = torch.searchsorted(self.target, rows, right=True)
        width = self.max_degree if len(self.target) else 0
        place = first[:, None] + torch.arange(width, device=rows.device)
        mask = place < end[:, None]
        edges = torch.where(mask, place, 0)
        return Neighbors(
            nodes=torch.where(mask, self.source[edges], 0),
            attr=torch.where(mask[..., None], self.attr[edges], 0),
            mask=mask,
        )


def _from_pyg(batch: Mapping[str, Any]) -> AttentionGraphs:
    source, target = batch["edge_index"]
    order = torch.argsort(target, stable=True)
    target = target[order]
    samples = len(batch["label"])
    degrees = torch.bincount(target, minlength=1)
    return AttentionGraphs(
        nodes=batch["x"],
        source=source[order],
        target=target,
        attr=batch["edge_attr"][order],
        last=(batch["ptr"][1:] - 1).reshape(samples, -1),
        max_degree=int(degrees.max()),
    )


def pad_graphs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The same batch with its nodes and edges padded to one of few sizes, so that a recorded step
    can be reused for the same size. The padding belongs to no sample."""
    nodes, edges = len(batch["nodes"]), len(batch["edge_source"])
    more = dict.fromkeys(("edge_source", "edge_target", "edge_attr"), round_up(edges) - edges)
    return pad_rows(batch, {"nodes": round_up(nodes) - nodes, **more}, edge_target=NO_NODE)


def pad_rows(batch: Mapping[str, Any], more: Mapping[str, int], **values: float) -> dict[str, Any]:
    """The same batch with so many rows more in some of its arrays; 0 unless a value is given."""
    padded = {
        name: F.pad(
            batch[name], (0, 0) * (batch[name].dim() - 1) + (0, count), value=values.get(name, 0)
        )
        for name, count in more.items()
    }
    return {**batch, **padded}


def round_up(size: int) -> int:
    """Round up to the next of eight steps between two powers of two: at most an eighth more."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


# Large enough to keep threads busy, small enough for the caches; a GPU has no such limit.
_CPU_PIECE_BYTES, _GPU_PIECE_BYTES = 4 << 20, 1 << 30


class EdgeMessages(nn.Module):
    """The messages of one round; `edge` turns an edge's attention weight into a vector."""

    def __init__(self, features: int, edge_dim: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_dim, features)

    def from_data(
        self, values: Float[Tensor, "nodes features"], neighbors: Neighbors
    ) -> Float[Tensor, "rows features"]:
        """Sums over rows of `values`, which has no gradient."""
        values = values.to(_working_type(values, self.edge.weight))
        return _SumOverData.apply(values, neighbors, self.edge.weight, self.edge.bias)

    def from_values(
        self, values: Float[Tensor, "rows width features"], neighbors: Neighbors
    ) -> Float[Tensor, "rows features"]:
        """Sums over the neighbors' own `values`, already gathered for each row."""
        messages = torch.relu(values + self.edge(neighbors.attr.to(self.edge.weight.dtype)))
        return (messages * neighbors.mask[..., None]).sum(1)


class _SumOverData(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, neighbors: Neighbors, weight: Tensor, bias: Tensor
    ) -> Tensor:
        # The fused kernel is for a GPU, and for edges with a single feature.
        if values.is_cuda and neighbors.attr.shape[-1] == 1 and _has_triton():
            from clew.hallucination.detectors.networks.fused import sum_messages

            sums, slopes = sum_messages(
                values, neighbors.nodes, neighbors.attr, neighbors.mask, weight, bias
            )
        else:
            sums, slopes = _sum_in_pieces(values, neighbors, weight, bias)
        ctx.save_for_backward(slopes)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        found = (slopes * grad[:, None]).sum(0, dtype=torch.float32)
        return None, None, found[:-1].T, found[-1]


def _sum_in_pieces(
    values: Tensor, neighbors: Neighbors, weight: Tensor, bias: Tensor
) -> tuple[Float[Tensor, "rows features"], Float[Tensor, "rows edge_features_and_one features"]]:
    """The sums and their derivatives with respect to each column of `weight` and `bias`."""
    # Missing neighbors point past the last node, to a value too low to pass the ReLU.
    values = F.pad(values + bias.to(values.dtype), (0, 0, 0, 1), value=-torch.inf)
    nodes = torch.where(neighbors.mask, neighbors.nodes, len(values) - 1)
    attr, weight = neighbors.attr.to(values.dtype), weight.to(values.dtype)
    given = F.pad(attr, (0, 1), value=1.0).transpose(1, 2)
    sums = values.new_empty((len(nodes), values.shape[1]))
    slopes = values.new_empty((len(nodes), given.shape[1], values.shape[1]))
    for piece in _pieces(nodes, values):
        messages = values.index_select(0, nodes[piece].flatten())
        messages = messages.view(*nodes[piece].shape, values.shape[1])
        if attr.shape[-1] == 1:
            messages.addcmul_(attr[piece], weight[:, 0])
        else:
            messages += attr[piece] @ weight.T
        torch.bmm(given[piece], (messages > 0).to(values.dtype), out=slopes[piece])
        torch.sum(messages.clamp_(min=0), 1, out=sums[piece])
    return sums, slopes


def _pieces(nodes: Tensor, values: Tensor) -> Iterator[slice]:
    rows, width = nodes.shape
    most = _CPU_PIECE_BYTES if values.device.type == "cpu" else _GPU_PIECE_BYTES
    step = max(1, most // max(1, width * values.shape[1] * values.itemsize))
    for start in range(0, rows, step):
        yield slice(start, start + step)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _working_type(values: Tensor, weight: Tensor) -> torch.dtype:
    """The type to compute in: single precision on a CPU, where it is faster for everything but
    matrix products."""
    kind = values.device.type
    if kind == "cpu" or not torch.is_autocast_enabled(kind):
        return weight.dtype
    return torch.get_autocast_dtype(kind)
