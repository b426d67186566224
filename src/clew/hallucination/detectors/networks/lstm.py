"""Networks over layers. LSTM follows the last token's state from the first layer to the last;
GNN-det and GVAE add two rounds of message passing on the attention graph of every layer, read at
the last token, the latter through a variational bottleneck."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clew.base.settings import MAX_LAYERS, check_fraction, check_positive, check_sizes, check_weight
from clew.hallucination.detectors.networks.graphs import (
    AttentionGraphs,
    EdgeMessages,
    Neighbors,
    pad_graphs,
)

_ROWS_IN_CACHE = 128


class LayerLSTM(nn.Module):
    """Reads a sequence over layers in both directions and returns one logit (1 is hallucinated).
    `beside` is the number of features per layer besides the projected states."""

    def __init__(self, config: "LSTMConfig", beside: int = 0) -> None:
        super().__init__()
        hidden, dropout = config.lstm_hidden, config.dropout
        widths = [hidden + beside] + [2 * hidden] * (config.num_lstm_layers - 1)
        self.lstms = nn.ModuleList(
            nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for width in widths
        )
        self.between = SequenceDropout(dropout)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, sequence: Float[Tensor, "batch layers dim"]) -> Float[Tensor, " batch"]:
        for number, lstm in enumerate(self.lstms):
            sequence, (ends, _) = lstm(self.between(sequence) if number else sequence)
        forward_end, backward_end = ends
        return self.head(torch.cat([forward_end, backward_end], dim=1)).squeeze(1)


class SequenceDropout(nn.Module):
    """Variational dropout (Gal and Ghahramani, 2016): drops the same features of a sample in every
    layer. It needs only a thirtieth of the random numbers of ordinary dropout."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(probability)

    def forward(self, sequence: Float[Tensor, "batch layers dim"]) -> Tensor:
        if not self.training or not self.drop.p:
            return sequence
        return sequence * self.drop(sequence.new_ones(len(sequence), 1, sequence.shape[2]))


class StateProjection(nn.Module):
    """States `[batch, layers, dim]` -> `[batch, layers, width]`.

    The magnitude of states differs between layers by orders of magnitude. Each is normalized to
    mean 0 and standard deviation 1 over its own values: this needs no gradient, so only the
    normalized copy of the wide input is kept for the backward pass. A learned scale would be
    redundant with the projection.
    """

    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.project = nn.Linear(dim, width)
        self.dropout = SequenceDropout(dropout)

    def forward(self, states: Float[Tensor, "batch layers dim"]) -> Float[Tensor, "batch layers w"]:
        kind = states.device.type
        mixed = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if mixed else self.project.weight.dtype
        return self.dropout(self.project(scale(states, dtype)))


@torch.no_grad()
def scale(
    values: Float[Tensor, "*rows features"], dtype: torch.dtype | None = None
) -> Float[Tensor, "*rows features"]:
    """Each row with mean 0 and standard deviation 1; in the input's precision by default."""
    dtype, shape = dtype or values.dtype, values.shape[-1:]
    with torch.autocast(values.device.type, enabled=False):
        if values.device.type == "cpu" and {values.dtype, dtype} == {torch.half, torch.bfloat16}:
            # On a CPU, converting between 16-bit formats is only fast through float32.
            scaled = torch.empty_like(values, dtype=dtype)
            rows = values.flatten(0, -2).split(_ROWS_IN_CACHE)
            for row, out in zip(rows, scaled.flatten(0, -2).split(_ROWS_IN_CACHE), strict=True):
                out.copy_(F.layer_norm(row.float(), shape))
            return scaled
        return F.layer_norm(values, shape).to(dtype)


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """Hyperparameters of an LSTM detector; `input_dim` is the hidden size of the captured model."""

    input_dim: int
    lstm_hidden: int = 128
    num_lstm_layers: int = 2
    dropout: float = 0.2

    def __post_init__(self) -> None:
        check_sizes(self, "input_dim", "lstm_hidden")
        check_positive(self, "num_lstm_layers", most=MAX_LAYERS)
        check_fraction(self, "dropout")


class LSTMDetector(nn.Module):
    """Takes a batch with `sequence` `[batch, layers, dim]`; returns logits `[batch]`."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.states = StateProjection(config.input_dim, config.lstm_hidden, config.dropout)
        self.over_layers = LayerLSTM(config)

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        return self.over_layers(self.states(batch["sequence"]))


@dataclass(frozen=True, kw_only=True)
class GNNLSTMConfig(LSTMConfig):
    """Hyperparameters of a GNN-det + LSTM detector; `node_dim` and `edge_dim` are dimensions of the
    data."""

    node_dim: int
    edge_dim: int = 1
    gnn_hidden: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "node_dim", "edge_dim", "gnn_hidden")


class GNNLSTMDetector(nn.Module):
    """Takes a batch with graphs and `sequence`; returns logits `[batch]`."""

    def __init__(self, config: GNNLSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.graphs = GraphReadout(config.node_dim, config.edge_dim, config.gnn_hidden)
        self.states = StateProjection(config.input_dim, config.lstm_hidden, config.dropout)
        self.over_layers = LayerLSTM(config, config.gnn_hidden)

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


_LOG_VARIANCE_LIMIT = 8.0


@dataclass(frozen=True, kw_only=True)
class GVAELSTMConfig(GNNLSTMConfig):
    """Hyperparameters of a GVAE + LSTM detector, including the weights of its two extra losses."""

    latent_dim: int = 32
    kl_weight: float = 0.001
    reconstruction_weight: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "latent_dim")
        check_weight(self, "kl_weight", "reconstruction_weight")


class GVAELSTMDetector(nn.Module):
    """Takes a batch with graphs and `sequence`; returns logits `[batch]` and the weighted losses
    `kl` and `reconstruction`."""

    def __init__(self, config: GVAELSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.graphs = GraphReadout(config.node_dim, config.edge_dim, config.gnn_hidden)
        self.latent = nn.Linear(config.gnn_hidden, 2 * config.latent_dim)
        self.decoder = nn.Sequential(
            nn.Linear(config.latent_dim, config.gnn_hidden),
            nn.ReLU(),
            nn.Linear(config.gnn_hidden, 2 * config.node_dim),
        )
        self.states = StateProjection(config.input_dim, config.lstm_hidden, config.dropout)
        self.over_layers = LayerLSTM(config, 2 * config.latent_dim)

    def forward(
        self, batch: Mapping[str, Any]
    ) -> tuple[Float[Tensor, " batch"], dict[str, Tensor]]:
        states = self.states(batch["sequence"])
        read = self.graphs(AttentionGraphs.from_batch(batch))
        mean, log_variance = self._encode(read)
        latent = torch.cat([mean, log_variance], dim=1).view(*states.shape[:2], -1)
        logits = self.over_layers(torch.cat([states, latent.to(states.dtype)], dim=2))
        return logits, self._losses(read, mean, log_variance)

    def latent_path(self, batch: Mapping[str, Any]) -> Float[Tensor, "batch layers latent"]:
        """The latent mean of every answer after every layer."""
        graphs = AttentionGraphs.from_batch(batch)
        return self._encode(self.graphs(graphs))[0].view(*graphs.last.shape, -1)

    def _encode(self, read: Readout) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.latent(read.encoding).float().chunk(2, dim=1)
        return mean, log_variance.clamp(-_LOG_VARIANCE_LIMIT, _LOG_VARIANCE_LIMIT)

    def _losses(self, read: Readout, mean: Tensor, log_variance: Tensor) -> dict[str, Tensor]:
        sample = mean
        if self.training:
            sample = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = F.mse_loss(self.decoder(sample).float(), _surroundings(read))
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return {
            "kl": self.config.kl_weight * kl,
            "reconstruction": self.config.reconstruction_weight * error,
        }

    pad_batch = staticmethod(pad_graphs)


@torch.no_grad()
def _surroundings(read: Readout) -> Float[Tensor, "readouts twice_features"]:
    """What a latent must reconstruct: the last token, and the attention-weighted mean of the tokens
    it attends to."""
    near = read.neighbors
    weight = near.attr[..., :1].float() * near.mask[..., None]
    weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-6)
    seen = (read.nodes[near.nodes].float() * weight).sum(1)
    return torch.cat([read.nodes[read.last].float(), seen], dim=1)
