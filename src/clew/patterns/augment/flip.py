"""Whether photos may be mirrored: not where left and right tell classes apart."""

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn import functional as F

_MOST = 2000
_SIDE = 16
# Chance alone makes the two shares differ by a few points.
_MAY_LOSE = 0.9


def decide_flip(
    images: UInt8[np.ndarray, "photos side side 3"], labels: Int[np.ndarray, " photos"]
) -> tuple[bool, str]:
    """The nearest other photo mostly shows the same class. Where the nearest to the mirror image
    does so clearly less often, mirroring would teach wrong things. Gives why."""
    chosen = np.random.default_rng(0).permutation(len(images))[:_MOST]
    looks = _looks(torch.from_numpy(images[chosen]))
    classes = torch.from_numpy(np.asarray(labels)[chosen])
    mirrored = looks.flip(2)
    plain = _share_of_same_class(looks, looks, classes)
    turned = _share_of_same_class(mirrored, looks, classes)
    told = (
        f"the nearest photo is of the same class for {plain:.0%} as they are, {turned:.0%} mirrored"
    )
    if turned < _MAY_LOSE * plain:
        return False, f"left and right seem to matter: {told}"
    return True, told


def _looks(images: UInt8[Tensor, "photos side side 3"]) -> Tensor:
    small = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), _SIDE).permute(0, 2, 3, 1)
    small = small - small.mean(dim=(1, 2, 3), keepdim=True)
    return small / small.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-3)


def _share_of_same_class(asked: Tensor, others: Tensor, classes: Tensor) -> float:
    near = torch.cdist(asked.flatten(1), others.flatten(1))
    near.fill_diagonal_(torch.inf)  # not the photo itself, nor its own mirror image
    return float((classes[near.argmin(1)] == classes).float().mean())
