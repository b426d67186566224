"""LSTM over layers: follows the last token's state from the first layer to the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from clew.hallucination.detectors.networks.recurrent import LayerLSTM
from clew.hallucination.detectors.networks.states import StateProjection
from clew.settings import check_fraction, check_positive


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """Sizes of an LSTM detector; `input_dim` is the width of the captured model's states."""

    input_dim: int
    lstm_hidden: int = 128
    num_lstm_layers: int = 2
    dropout: float = 0.2

    def __post_init__(self) -> None:
        check_positive(self, "input_dim", "lstm_hidden", "num_lstm_layers")
        check_fraction(self, "dropout")


class LSTMDetector(nn.Module):
    """Takes a batch with `sequence` `[batch, layers, dim]`; gives logits `[batch]`."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.states = StateProjection(config.input_dim, config.lstm_hidden, config.dropout)
        self.over_layers = LayerLSTM(
            config.lstm_hidden, config.lstm_hidden, config.num_lstm_layers, config.dropout
        )

    def forward(self, batch: Mapping[str, Any]) -> Float[Tensor, " batch"]:
        return self.over_layers(self.states(batch["sequence"]))
