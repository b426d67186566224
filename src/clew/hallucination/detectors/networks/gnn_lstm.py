"""GNN-det + LSTM: two rounds of message passing on the attention graph of every layer, read at the
last token together with its original state; then an LSTM over the layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.base.settings import MAX_LAYERS, check_fraction, check_positive, check_sizes
from clew.hallucination.detectors.networks.graphs import AttentionGraphs, Neighbors, pad_graphs
from clew.hallucination.detectors.networks.lstm import LayerLSTM, StateProjection, scale
from clew.hallucination.detectors.networks.messages import EdgeMessages


@dataclass(frozen=True, kw_only=True)
class GNNLSTMConfig:
    """Hyperparameters of a GNN-det + LSTM detector: first the dimensions of the data, then those of
    the network."""

    input_dim: int
    node_dim: int
    edge_dim: int = 1
    gnn_hidden: int = 64
    lstm_hidden: int = 128
    num_lstm_layers: int = 2
    dropout: float = 0.2

    def __post_init__(self) -> None:
        sizes = ("input_dim", "node_dim", "edge_dim", "gnn_hidden", "lstm_hidden")
        check_sizes(self, *sizes)
        check_positive(self, "num_lstm_layers", most=MAX_LAYERS)
        check_fraction(self, "dropout")


class GNNLSTMDetector(nn.Module):
    """Takes a batch with graphs and `sequence`; returns logits `[batch]`."""

    def __init__(self, config: GNNLSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.graphs = GraphReadout(config.node_dim, config.edge_dim, config.gnn_hidden)
        self.states = StateProjection(config.input_dim, config.lstm_hidden, config.dropout)
        self.over_layers = LayerLSTM(
            config.lstm_hidden + config.gnn_hidden,
            config.lstm_hidden,
            config.num_lstm_layers,
            config.dropout,
        )

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        states = self.states(batch["sequence"])
        read = self.graphs(AttentionGraphs.from_batch(batch)).encoding
        return self.over_layers(torch.cat([states, read.view(*states.shape[:2], -1)], dim=2))

    pad_batch = staticmethod(pad_graphs)


@dataclass(frozen=True, kw_only=True)
class Readout:
    """The readouts of the last tokens, and their inputs."""

    encoding: Float[Tensor, "readouts hidden"]
    nodes: Float[Tensor, "nodes features"]
    last: Tensor
    neighbors: Neighbors


class GraphReadout(nn.Module):
    """Two GINE layers over all layers' graphs at once, read at the last tokens.

    The first layer runs on the last tokens and those they attend to, the second only on the last
    tokens. The result equals PyG's GINEConv run on every token.
    """

    def __init__(self, node_dim: int, edge_dim: int, hidden: int) -> None:
        super().__init__()
        self.first_messages = EdgeMessages(node_dim, edge_dim)
        self.first_mlp = _mlp(node_dim, hidden)
        self.second_messages = EdgeMessages(hidden, edge_dim)
        self.second_mlp = _mlp(hidden, hidden)

    def forward(self, graphs: AttentionGraphs) -> Readout:
        nodes = scale(graphs.nodes)
        last = graphs.last.flatten()
        seen = graphs.neighbors(last)
        rows = torch.cat([last[:, None], seen.nodes], dim=1).flatten()
        sums = self.first_messages.from_data(nodes, graphs.neighbors(rows))
        near = self.first_mlp(nodes[rows].to(sums.dtype) + sums).view(len(last), -1, self.hidden)
        sums = self.second_messages.from_values(near[:, 1:], seen)
        encoding = self.second_mlp(near[:, 0] + sums)
        return Readout(encoding=encoding, nodes=nodes, last=last, neighbors=seen)

    @property
    def hidden(self) -> int:
        return self.second_messages.edge.out_features


def _mlp(input_dim: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(input_dim, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
    )
