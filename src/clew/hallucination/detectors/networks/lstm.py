"""LSTM over layers: follows the last token's state from the first layer to the last. Its parts
(scaled and projected states, the bidirectional LSTM with its head) are those of all networks over
layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clew.base.settings import MAX_LAYERS, check_fraction, check_positive, check_sizes

_ROWS_IN_CACHE = 128


class LayerLSTM(nn.Module):
    """Reads a sequence over layers in both directions and returns one logit (1 is hallucinated)."""

    def __init__(self, input_dim: int, hidden: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        widths = [input_dim] + [2 * hidden] * (num_layers - 1)
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
        self.over_layers = LayerLSTM(
            config.lstm_hidden, config.lstm_hidden, config.num_lstm_layers, config.dropout
        )

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        return self.over_layers(self.states(batch["sequence"]))
