"""Augmented views of photos: crops, mirrored or not, in another light. The view of a photo follows
from its pixels and its number, whatever else is in the set."""

import hashlib
import math

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

# A crop has this share of the photo's area; brightness and contrast change by up to this factor.
_LEAST_AREA, _LIGHT = 0.4, 0.25
_STRETCH = math.log(4 / 3)


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


def make_view(
    image: UInt8[Tensor, "side side 3"], digest: str, view: int, *, size: int, flip: bool
) -> UInt8[Tensor, "size size 3"]:
    """View number `view` of the photo with this digest; view 0 is the photo itself."""
    if view == 0:
        return resize(image[None], size)[0]
    draw = _generator(digest, view)
    crop = _crop(image, draw)
    found = resize_crop(crop, size)
    if draw.random() < 0.5 and flip:
        found = found.flip(1)
    contrast, brightness = np.exp(draw.uniform(-_LIGHT, _LIGHT, 2))
    values = found.float()
    mean = values.mean()
    changed = ((values - mean) * contrast + mean) * brightness
    return changed.round_().clamp_(0, 255).to(torch.uint8)


def resize_crop(crop: UInt8[Tensor, "rows columns 3"], size: int) -> UInt8[Tensor, "size size 3"]:
    values = crop.permute(2, 0, 1).float()[None]
    found = F.interpolate(values, (size, size), mode="bilinear", antialias=True)
    return found[0].round_().clamp_(0, 255).to(torch.uint8).permute(1, 2, 0)


def _crop(image: UInt8[Tensor, "side side 3"], draw: np.random.Generator) -> Tensor:
    side = image.shape[0]
    area, stretch = draw.uniform(_LEAST_AREA, 1), draw.uniform(-_STRETCH, _STRETCH)
    shape = [math.sqrt(area * math.exp(sign * stretch)) for sign in (1, -1)]
    rows, columns = (max(1, min(side, round(side * part))) for part in shape)
    top, left = (int(draw.integers(0, side - length + 1)) for length in (rows, columns))
    return image[top : top + rows, left : left + columns]


def _generator(digest: str, view: int) -> np.random.Generator:
    seed = hashlib.blake2b(f"{digest} {view}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "little"))
