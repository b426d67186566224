"""A batch of attention graphs on the device, and the part of it that a readout can see.

All layers of all samples are one graph. Two rounds of message passing read at the last token depend
on that token, the tokens it attends to, and those that these attend to: nothing else is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
    more_nodes, more_edges = round_up(nodes) - nodes, round_up(edges) - edges
    return {
        **batch,
        "nodes": F.pad(batch["nodes"], (0, 0, 0, more_nodes)),
        "edge_source": F.pad(batch["edge_source"], (0, more_edges)),
        "edge_target": F.pad(batch["edge_target"], (0, more_edges), value=NO_NODE),
        "edge_attr": F.pad(batch["edge_attr"], (0, 0, 0, more_edges)),
    }


def round_up(size: int) -> int:
    """Round up to the next of eight steps between two powers of two: at most an eighth more."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
