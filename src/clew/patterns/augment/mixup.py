"""Mixup: every picture, and its class, is laid over another one of its batch."""

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

_TABLE = 4096


class Mixup(nn.Module):
    """Weights are drawn for each picture from Beta(alpha, alpha). Batches come in random order, so
    the neighbour is as good a partner as any."""

    weights: Tensor

    def __init__(self, alpha: float) -> None:
        super().__init__()
        from scipy.stats import beta  # takes a second

        places = (np.arange(_TABLE) + 0.5) / _TABLE
        drawn = beta.ppf(places, alpha, alpha)
        weights = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float()
        self.register_buffer("weights", weights, persistent=False)

    def forward(
        self,
        images: Float[Tensor, "batch side side 3"],
        aims: Float[Tensor, "batch classes"],
    ) -> tuple[Float[Tensor, "batch side side 3"], Float[Tensor, "batch classes"]]:
        drawn = torch.rand(len(images), device=images.device)
        share = 1 - self.weights[(drawn * _TABLE).long()]
        return _lay_over(images, share), _lay_over(aims, share)


def _lay_over(values: Shaped[Tensor, "batch ..."], share: Tensor) -> Shaped[Tensor, "batch ..."]:
    share = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return values.lerp(values.roll(1, 0), share)
