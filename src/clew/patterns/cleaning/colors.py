"""Whether two aligned images have the same colors. Light, white balance and saturation may differ:
they change the whole image in the same way, another color of something in it does not."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Added to values from 0 to 255: the color of dark pixels is mostly noise.
_DARK = 24.0
# How far white balance (the logarithm of a factor) and saturation (a factor) may differ.
_MOST_BALANCE, _MOST_SATURATION = 0.5, 2.2
# A black and white photo: none of its pixels, at this small size, is farther from gray.
_GRAY = 0.02
# Of two images the worst pixels, by their share, may be this far apart: at all, since photos are
# recompressed, and relative to the most colorful pixels. Measured: benchmarks/patterns_clean.py.
_WORST, _APART, _OF_COLORS = 0.05, 0.2, 0.5

Colors = Float[Tensor, "pairs 3 side side"]
Hues = Float[Tensor, "pairs 2 pixels"]


def have_same_colors(ones: Colors, others: Colors) -> Bool[Tensor, " pairs"]:
    """Images from 0 to 255. One without any colors is a black and white copy of the other."""
    first, second = _hues(ones), _hues(others)
    colors = torch.maximum(_worst(_centered(first)), _worst(_centered(second)))
    apart = _worst(_compare(first, second))
    is_same = (apart <= _APART) | (apart <= _OF_COLORS * colors)
    return is_same | _is_gray(first) | _is_gray(second)


def _hues(images: Colors) -> Hues:
    """Red and blue relative to green, as logarithms: brightness does not count."""
    values = (images.flatten(2) + _DARK).log()
    return values[:, (0, 2)] - values[:, 1:2]


def _is_gray(hues: Hues) -> Bool[Tensor, " pairs"]:
    return hues.norm(dim=1).amax(1) < _GRAY


def _compare(first: Hues, second: Hues) -> Hues:
    """How they differ, after one change of saturation and of white balance for all pixels."""
    ones, others = _centered(first), _centered(second)
    saturation = (ones * others).sum((1, 2)) / (others**2).sum((1, 2)).clamp_min(1e-9)
    saturation = saturation.clamp(1 / _MOST_SATURATION, _MOST_SATURATION)
    missing = first - saturation[:, None, None] * second
    return missing - missing.mean(2, keepdim=True).clamp(-_MOST_BALANCE, _MOST_BALANCE)


def _centered(hues: Hues) -> Hues:
    return hues - hues.mean(2, keepdim=True)


def _worst(hues: Hues) -> Float[Tensor, " pairs"]:
    """The mean length of the longest few percent."""
    lengths = hues.norm(dim=1)
    count = max(1, round(_WORST * lengths.shape[1]))
    return lengths.topk(count, dim=1).values.mean(1)
