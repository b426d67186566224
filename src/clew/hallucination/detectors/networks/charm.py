"""CHARM: one graph an answer, of tokens that bear what every head pays to itself, and of edges that
bear what every head pays across; a few rounds of messages, read over the answer's tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.hallucination.detectors.networks.graphs import round_up
from clew.settings import check_fraction, check_positive

# Attention below it is as good as none: what a logarithm would stretch there is noise.
_FAINT = 1e-3


@dataclass(frozen=True, kw_only=True)
class CharmConfig:
    """Sizes of a CHARM detector. `node_dim` counts the heads of all layers, `edge_dim` the marks of
    an edge besides."""

    node_dim: int
    edge_dim: int
    gnn_hidden: int = 64
    rounds: int = 2
    dropout: float = 0.25

    def __post_init__(self) -> None:
        check_positive(self, "node_dim", "edge_dim", "gnn_hidden", "rounds")
        check_fraction(self, "dropout")


class CharmDetector(nn.Module):
    """Takes a flat batch of `clew.datasets.PreprocessedHeadsMapDataset`; gives logits `[batch]`."""

    def __init__(self, config: CharmConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.gnn_hidden
        self.embed = nn.Linear(config.node_dim, hidden)
        self.rounds = nn.ModuleList(
            CharmRound(hidden, config.edge_dim, config.dropout) for _ in range(config.rounds)
        )
        self.head = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(hidden, 1)
        )

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        dtype = self.embed.weight.dtype
        nodes = self.embed(stretch(batch["nodes"].to(dtype)))
        edges = HeadEdges(
            source=batch["edge_source"],
            target=batch["edge_target"],
            attr=stretch(batch["edge_attr"].to(dtype)),
        )
        for messages in self.rounds:
            nodes = messages(nodes, edges)
        read = _mean_over_answers(nodes, batch)
        return self.head(read).squeeze(1)

    @staticmethod
    def pad_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
        """The same batch with its tokens and edges filled up to one of few sizes, so that a step
        that was recorded for a size can be used again. What is filled in is no answer's token."""
        nodes, edges = len(batch["nodes"]), len(batch["edge_source"])
        # At least one token, for the edges to lead to.
        more_nodes, more_edges = round_up(nodes + 1) - nodes, round_up(edges) - edges
        return {
            **batch,
            "nodes": F.pad(batch["nodes"], (0, 0, 0, more_nodes)),
            "node_graph": F.pad(batch["node_graph"], (0, more_nodes)),
            "is_answer": F.pad(batch["is_answer"], (0, more_nodes)),
            "edge_source": F.pad(batch["edge_source"], (0, more_edges)),
            "edge_target": F.pad(batch["edge_target"], (0, more_edges), value=nodes),
            "edge_attr": F.pad(batch["edge_attr"], (0, 0, 0, more_edges)),
        }


@dataclass(frozen=True, kw_only=True)
class HeadEdges:
    """Edges lead from the token that is looked at (source) to the one that looks (target)."""

    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    attr: Float[Tensor, "edges edge_features"]


class CharmRound(nn.Module):
    """Every token takes the mean of MLP([neighbour, edge]) over whom it looks at, beside itself."""

    def __init__(self, hidden: int, edge_dim: int, dropout: float) -> None:
        super().__init__()
        self.messages = MeanMessages(hidden, edge_dim)
        self.itself = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, nodes: Float[Tensor, "nodes hidden"], edges: HeadEdges
    ) -> Float[Tensor, "nodes hidden"]:
        heard = self.itself(nodes) + self.messages(nodes, edges)
        return nodes + self.dropout(torch.relu(self.norm(heard)))


class MeanMessages(nn.Module):
    """The mean over a token's neighbours of an MLP of two layers; 0 for one that has none.

    The first layer takes neighbours and edges apart, so that a neighbour is multiplied once, not
    once an edge; the second is linear, so it is applied to the mean.
    """

    def __init__(self, hidden: int, edge_dim: int) -> None:
        super().__init__()
        self.neighbour = nn.Linear(hidden, hidden, bias=False)
        self.edge = nn.Linear(edge_dim, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(
        self, nodes: Float[Tensor, "nodes hidden"], edges: HeadEdges
    ) -> Float[Tensor, "nodes hidden"]:
        near = self.neighbour(nodes).index_select(0, edges.source)
        inner = torch.relu(near + self.edge(edges.attr))
        sums, degrees = _sum_by(edges.target, inner, len(nodes))
        return self.out(sums / degrees.clamp(min=1)) * (degrees > 0)


@torch.no_grad()
def stretch(attention: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows features"]:
    """None to all as -2 to 2 on the scale of logarithms, where heads that differ tenfold are as far
    apart as any other such two. As 0 to 1 the values would differ too little to learn from."""
    stretched = (attention + _FAINT).log_().sub_(math.log(_FAINT))
    return stretched.mul_(4 / math.log((1 + _FAINT) / _FAINT)).sub_(2)


def _mean_over_answers(
    nodes: Float[Tensor, "nodes hidden"], batch: Mapping[str, Any]
) -> Float[Tensor, "batch hidden"]:
    """Over the answer's tokens; 0 for an answer without one."""
    samples = len(batch["label"])
    # Other tokens go to a place behind the last sample.
    place = torch.where(batch["is_answer"], batch["node_graph"], samples)
    sums, counts = _sum_by(place, nodes, samples + 1)
    return (sums / counts.clamp(min=1))[:-1]


def _sum_by(
    place: Int[Tensor, " rows"], values: Float[Tensor, "rows features"], places: int
) -> tuple[Float[Tensor, "places features"], Float[Tensor, "places 1"]]:
    """The sum of the rows that belong to each place, and how many these are. Single precision: a
    16-bit sum of hundreds loses the last of them."""
    values = values.float()
    sums = values.new_zeros(places, values.shape[1]).index_add(0, place, values)
    counts = values.new_zeros(places).index_add(0, place, values.new_ones(len(values)))
    return sums, counts[:, None]
