"""The head that all networks over layers share: a bidirectional LSTM, then a small MLP."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LayerLSTM(nn.Module):
    """Reads a sequence over layers in both directions and gives one logit (1 is made up)."""

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
    """Drops the same features of a sample in every layer: the dropout that recurrent networks
    bear (Gal and Ghahramani, 2016), and a thirtieth of the random numbers."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(probability)

    def forward(self, sequence: Float[Tensor, "batch layers dim"]) -> Tensor:
        if not self.training or not self.drop.p:
            return sequence
        return sequence * self.drop(sequence.new_ones(len(sequence), 1, sequence.shape[2]))
