"""The states of the last token after every layer, made fit for a network: scaled, and projected."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clew.models.recurrent import SequenceDropout


class StateProjection(nn.Module):
    """States `[batch, layers, dim]` -> `[batch, layers, width]`.

    States differ in size from layer to layer by orders of magnitude. Each is brought to mean 0 and
    deviation 1 over its own values: that needs no gradient, so nothing of the wide input but its
    scaled copy is kept for the backward pass. A learned scale would be one with the projection.
    """

    def __init__(self, dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.project = nn.Linear(dim, width)
        self.dropout = SequenceDropout(dropout)

    def forward(self, states: Float[Tensor, "batch layers dim"]) -> Float[Tensor, "batch layers w"]:
        return self.dropout(self.project(scale(states).to(self.project.weight.dtype)))


@torch.no_grad()
def scale(values: Float[Tensor, "*rows features"]) -> Float[Tensor, "*rows features"]:
    """Each row with mean 0 and deviation 1, in the precision of the input."""
    with torch.autocast(values.device.type, enabled=False):
        return F.layer_norm(values, values.shape[-1:])
