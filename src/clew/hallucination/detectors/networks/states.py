"""The states of the last token after every layer, made fit for a network: scaled, and projected."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clew.hallucination.detectors.networks.recurrent import SequenceDropout

_ROWS_IN_CACHE = 128


class StateProjection(nn.Module):
    """States `[batch, layers, dim]` -> `[batch, layers, width]`.

    States differ in size from layer to layer by orders of magnitude. Each is brought to mean 0 and
    deviation 1 over its own values: that needs no gradient, so nothing of the wide input but its
    scaled copy is kept for the backward pass. A learned scale would be one with the projection.
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
    """Each row with mean 0 and deviation 1; in the precision of the input unless told otherwise."""
    dtype, shape = dtype or values.dtype, values.shape[-1:]
    with torch.autocast(values.device.type, enabled=False):
        if values.device.type == "cpu" and {values.dtype, dtype} == {torch.half, torch.bfloat16}:
            # A CPU has no quick way from one 16-bit format to the other but through a third.
            scaled = torch.empty_like(values, dtype=dtype)
            rows = values.flatten(0, -2).split(_ROWS_IN_CACHE)
            for row, out in zip(rows, scaled.flatten(0, -2).split(_ROWS_IN_CACHE), strict=True):
                out.copy_(F.layer_norm(row.float(), shape))
            return scaled
        return F.layer_norm(values, shape).to(dtype)
