"""Augmented views of photos, as in training on a GPU. The view of a photo follows from its pixels
and its number, whatever else is in the set."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.patterns.augment import AugmentConfig, RandAugment
from clew.patterns.augment.apply import apply_changes

# A photo's digest and the number of a view.
Key = tuple[str, int]


def resize(
    images: UInt8[Tensor, "batch side side 3"], size: int
) -> UInt8[Tensor, "batch size size 3"]:
    """Images of `size` pixels; the same ones if they are already."""
    if images.shape[1] == size:
        return images
    values = images.permute(0, 3, 1, 2).float()
    shrinks = images.shape[1] > size
    found = F.interpolate(values, (size, size), mode="bilinear", antialias=shrinks)
    return found.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


class Views:
    """Makes views. Mixup is not part of them: it needs two photos."""

    def __init__(self, config: AugmentConfig) -> None:
        self._config = replace(config, mixup=0.0)
        self._augment = RandAugment(self._config)

    def describe(self) -> dict[str, Any]:
        return asdict(self._config)

    @property
    def digest(self) -> str:
        """A short name for the settings."""
        return hashlib.blake2b(repr(self._config).encode(), digest_size=4).hexdigest()

    def make(
        self, images: UInt8[Tensor, "batch side side 3"], keys: Sequence[Key]
    ) -> UInt8[Tensor, "batch side side 3"]:
        """The views of photos; view 0 is the photo itself."""
        numbers = torch.stack([_draw(key, self._augment.numbers) for key in keys])
        changed = apply_changes(images, *self._augment.decide(numbers))
        is_plain = torch.tensor([view == 0 for _, view in keys])
        changed = (255 * changed).round_().clamp_(0, 255).to(torch.uint8)
        return torch.where(is_plain[:, None, None, None], images, changed)


def _draw(key: Key, count: int) -> Float[Tensor, " numbers"]:
    digest, view = key
    seed = hashlib.blake2b(f"{digest} {view}".encode(), digest_size=7).digest()
    draw = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    return torch.rand(count, generator=draw)
