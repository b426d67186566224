"""CHARM: one graph per answer, with the self-attention weights of every head as node features and
the attention between tokens as edge features; a few rounds of message passing, pooled over the
answer's tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.base.settings import MAX_LAYERS, check_fraction, check_positive, check_sizes
from clew.hallucination.detectors.networks.graphs import pad_rows, round_up

# Attention below this is treated as none: the logarithm would amplify noise there.
_FAINT = 1e-3


@dataclass(frozen=True, kw_only=True)
class CharmConfig:
    """Hyperparameters of a CHARM detector. `node_dim` is the total number of heads over all layers;
    `edge_dim` also counts the markers of an edge."""

    node_dim: int
    edge_dim: int
    gnn_hidden: int = 64
    rounds: int = 2
    dropout: float = 0.25

    def __post_init__(self) -> None:
        check_sizes(self, "node_dim", "edge_dim", "gnn_hidden")
        check_positive(self, "rounds", most=MAX_LAYERS)
        check_fraction(self, "dropout")


class CharmDetector(nn.Module):
    """Takes a flat batch of `clew.datasets.PreprocessedHeadsMapDataset`; returns logits."""

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
        """The same batch with its tokens and edges padded to one of few sizes, so that a recorded
        step can be reused for the same size. Padding tokens belong to no answer."""
        nodes, edges = len(batch["nodes"]), len(batch["edge_source"])
        # At least one token that the edges can point to.
        more_nodes, more_edges = round_up(nodes + 1) - nodes, round_up(edges) - edges
        tokens = dict.fromkeys(("nodes", "node_graph", "is_answer"), more_nodes)
        between = dict.fromkeys(("edge_source", "edge_target", "edge_attr"), more_edges)
        return pad_rows(batch, {**tokens, **between}, edge_target=nodes)


@dataclass(frozen=True, kw_only=True)
class HeadEdges:
    """Edges go from the attended token (source) to the attending one (target)."""

    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    attr: Float[Tensor, "edges edge_features"]


class CharmRound(nn.Module):
    """Every token combines itself with the mean of MLP([neighbor, edge]) over the tokens it attends
    to."""

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
    """The mean over a token's neighbors of a two-layer MLP; 0 if it has none. The first layer
    treats neighbors and edges separately, so that a neighbor is multiplied once and not once per
    edge; the second is linear, so it is applied to the mean.
    """

    def __init__(self, hidden: int, edge_dim: int) -> None:
        super().__init__()
        self.neighbor = nn.Linear(hidden, hidden, bias=False)
        self.edge = nn.Linear(edge_dim, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(
        self, nodes: Float[Tensor, "nodes hidden"], edges: HeadEdges
    ) -> Float[Tensor, "nodes hidden"]:
        near = self.neighbor(nodes).index_select(0, edges.source)
        inner = torch.relu(near + self.edge(edges.attr))
        sums, degrees = _sum_by(edges.target, inner, len(nodes))
        return self.out(sums / degrees.clamp(min=1)) * (degrees > 0)


@torch.no_grad()
def stretch(attention: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows features"]:
    """Attention on a logarithmic scale from -2 to 2, where a factor of ten is always the same
    distance. On a scale from 0 to 1 the values would differ too little to learn from."""
    stretched = (attention + _FAINT).log_().sub_(math.log(_FAINT))
    return stretched.mul_(4 / math.log((1 + _FAINT) / _FAINT)).sub_(2)


def _mean_over_answers(
    nodes: Float[Tensor, "nodes hidden"], batch: Mapping[str, Any]
) -> Float[Tensor, "batch hidden"]:
    """Mean pooling over the answer's tokens; 0 for an answer without tokens."""
    samples = len(batch["node_counts"])
    # Other tokens go to a slot after the last sample.
    place = torch.where(batch["is_answer"], batch["node_graph"], samples)
    sums, counts = _sum_by(place, nodes, samples + 1)
    return (sums / counts.clamp(min=1))[:-1]


def _sum_by(
    place: Int[Tensor, " rows"], values: Float[Tensor, "rows features"], places: int
) -> tuple[Float[Tensor, "places features"], Float[Tensor, "places 1"]]:
    """The sum and the number of the rows of each slot. In single precision, since a 16-bit sum of
    hundreds loses the last ones."""
    values = values.float()
    sums = values.new_zeros(places, values.shape[1]).index_add(0, place, values)
    counts = values.new_zeros(places).index_add(0, place, values.new_ones(len(values)))
    return sums, counts[:, None]
