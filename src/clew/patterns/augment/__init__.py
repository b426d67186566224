"""Random augmentation of a training batch, drawn on its device: RandAugment for every image, Mixup
for each with its neighbor."""

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from clew.patterns.augment.operations import (
    PARAMETERS,
    AugmentConfig,
    Images,
    Parameters,
    Signs,
    Values,
    apply_changes,
    change_table,
    draw_crops,
    jitter_row,
)

_DRAWN_WEIGHTS = 4096


class RandAugment(nn.Module):
    """Takes uint8 images `[batch, side, side, 3]`; returns floats from 0 to 1 in the same layout.

    On a GPU one kernel moves, recolors and converts every image.
    """

    table: Tensor
    jitter: Tensor

    def __init__(self, config: AugmentConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("table", change_table(config.magnitude), persistent=False)
        self.register_buffer("jitter", jitter_row(config), persistent=False)

    def forward(self, images: Images, dtype: torch.dtype = torch.float32) -> Values:
        parameters, mirrored = self.draw(len(images))
        if images.is_cuda:
            from clew.patterns.augment.fused import apply_fused

            return apply_fused(images, parameters, mirrored, dtype)
        return apply_changes(images, parameters, mirrored).to(dtype)

    def draw(self, count: int) -> tuple[Parameters, Signs]:
        """Parameters for `count` images, and 1 or -1 for those that are mirrored."""
        return self.decide(torch.rand(count, self.numbers, device=self.table.device))

    @property
    def numbers(self) -> int:
        """How many random numbers an image takes."""
        return 2 * self.config.ops + len(PARAMETERS) + 1

    def decide(self, numbers: Float[Tensor, "batch numbers"]) -> tuple[Parameters, Signs]:
        """What `draw` returns, from random numbers between 0 and 1."""
        ops = self.config.ops
        chosen, strength, moves, mirror = numbers.split([ops, ops, len(PARAMETERS), 1], dim=1)
        changes = self.table[(chosen * len(self.table)).long()]
        drawn = (changes * (0.5 + strength)[:, :, None]).sum(1)
        parameters = torch.addcmul(drawn, 2 * moves - 1, self.jitter)
        if self.config.crop is not None and self.config.is_cropping:
            parameters = parameters + draw_crops(self.config.crop, moves)
        if not self.config.flip:
            return parameters, torch.ones(len(numbers), device=numbers.device)
        return parameters, (mirror[:, 0] < 0.5).float() * 2 - 1


class Mixup(nn.Module):
    """Mixup (arXiv 1710.09412) of each image, or its feature map, with its neighbor in the batch,
    with weights drawn per image from Beta(alpha, alpha). Batches are in random order, so the
    neighbor is a random partner."""

    weights: Tensor

    def __init__(self, alpha: float) -> None:
        super().__init__()
        from scipy.stats import beta  # slow to import

        places = (np.arange(_DRAWN_WEIGHTS) + 0.5) / _DRAWN_WEIGHTS
        drawn = beta.ppf(places, alpha, alpha)
        weights = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float()
        self.register_buffer("weights", weights, persistent=False)

    def forward(
        self,
        images: Float[Tensor, "batch side side channels"],
        targets: Float[Tensor, "batch classes"],
    ) -> tuple[Float[Tensor, "batch side side channels"], Float[Tensor, "batch classes"]]:
        drawn = torch.rand(len(images), device=images.device)
        share = 1 - self.weights[(drawn * _DRAWN_WEIGHTS).long()]
        return _lay_over(images, share), _lay_over(targets, share)


def _lay_over(values: Shaped[Tensor, "batch ..."], share: Tensor) -> Shaped[Tensor, "batch ..."]:
    share = share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return values.lerp(values.roll(1, 0), share)
