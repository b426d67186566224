"""Near duplicates: the same photo resized, recompressed, cropped a little, or mirrored. Features
propose pairs; pixels decide, in gray and then in color, after one image has been aligned with the
other."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.patterns.cache.build import CachedPhotos
from clew.patterns.cache.samples import read_images
from clew.patterns.features.neighbors import Neighbors, find_neighbors, join_arrays, unit_rows

Pairs = Int64[np.ndarray, "pairs 2"]  # places of two photos each
GrayBytes = UInt8[np.ndarray, "photos 48 48"]
Pictures = Float[Tensor, "pairs channels side side"]
Grays = Float[Tensor, "pairs 1 side side"]
Colors = Float[Tensor, "pairs 3 side side"]
Hues = Float[Tensor, "pairs 2 pixels"]
Shapes = Float[Tensor, "pairs 4"]  # a shift and a scale along x, then along y
Scores = Float[Tensor, " pairs"]

SIDE = 48  # of the gray images that are compared
COLOR_SIDE = 16  # of those in color
_SMALL = 24  # of those that are aligned first, and of those that propose pairs
_TINY = 8
# The correlation of details, after alignment, from which on two images are one photo; images that
# come close are aligned once more. Measured: benchmarks/patterns_clean.py.
_SAME, _CLOSE = 0.92, 0.8
_STEPS, _MORE_STEPS = 8, 5
_AT_ONCE = 256
_MARGIN = 0.12  # of a side, not compared: a crop may have cut it off
_MOST_SHIFT = 0.3
_COARSE = 9  # pixels over which the coarse structure is averaged
# Parts of so many pixels a side must agree in their details, all but the lowest tenth. Seen: on
# photos and drawings 0.78 or more with their copies, 0.68 and less with others of the same shape.
_PART, _LEAST_CONTRAST, _LOWEST, _AGREED = 9, 2.0, 0.1, 0.73
# Each photo is compared with this many others, if they are this much alike at 8 x 8 pixels.
_PROPOSED, _ALIKE = 3, 0.8
_ROUGH, _ROUGHLY = 12, 0.4  # what images of this side share before they are aligned


class DuplicatePair(NamedTuple):
    """Two photos, by index, that show the same image; `likeness` is their correlation (up to 1)."""

    first: int
    second: int
    likeness: float
    mirrored: bool


class SmallImages(NamedTuple):
    """Photos as they are compared."""

    gray: GrayBytes
    color: UInt8[np.ndarray, "photos 16 16 3"]

    def mirrored(self) -> "SmallImages":
        return SmallImages(self.gray[:, :, ::-1], self.color[:, :, ::-1])


def read_small(cached: CachedPhotos) -> SmallImages:
    """The photos as near duplicates are found among them."""
    return join_arrays([make_small(images) for images in read_images(cached)])


def make_small(images: UInt8[np.ndarray, "photos size size 3"]) -> SmallImages:
    values = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    gray = _shrink(values.mean(1, keepdim=True), SIDE)[..., 0]
    return SmallImages(gray, _shrink(values, COLOR_SIDE))


def _shrink(
    values: Float[Tensor, "photos channels size size"], side: int
) -> UInt8[np.ndarray, "photos side side channels"]:
    small = F.interpolate(values, (side, side), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def find_duplicates(photos: SmallImages, *likely: Neighbors) -> list[DuplicatePair]:
    """The pairs of photos that show the same image, the most alike first. Besides photos that are
    alike at a glance, the neighbors in `likely` are compared."""
    gray, turned = photos.gray, photos.mirrored().gray
    return compare_pairs(photos, _propose(gray, gray, likely), _propose(gray, turned, likely))


def compare_pairs(
    photos: SmallImages, plain: Pairs, mirrored: Pairs | None = None
) -> list[DuplicatePair]:
    """Those of the pairs that show the same image, the most alike first. The second photos of
    `mirrored` (the same pairs, if None) are compared mirrored."""
    turned = plain if mirrored is None else mirrored
    found = [
        *_compare_all(photos, photos, plain, mirrored=False),
        *_compare_all(photos, photos.mirrored(), turned, mirrored=True),
    ]
    best: dict[tuple[int, int], DuplicatePair] = {}
    for pair in sorted(found, key=lambda pair: pair.likeness):
        best[pair.first, pair.second] = pair
    return sorted(best.values(), key=lambda pair: (-pair.likeness, pair.first, pair.second))


def _propose(gray: GrayBytes, others: GrayBytes, likely: Sequence[Neighbors]) -> Pairs:
    """Pairs that are alike at a glance, every pair once; the second is one of `others`."""
    rows, asked = _glance(gray), _glance(others)
    seen = find_neighbors(rows, _PROPOSED + 1, asked)  # one of these is the photo itself
    pairs = []
    for found in (seen, *likely):
        places = found.places[:, : _PROPOSED + 1]
        second = np.repeat(np.arange(len(places)), places.shape[1])
        pairs.append(np.stack([places.reshape(-1), second], axis=1))
    joined = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    joined = joined[joined[:, 0] != joined[:, 1]]
    return joined[np.einsum("pf,pf->p", rows[joined[:, 0]], asked[joined[:, 1]]) >= _ALIKE]


def _glance(gray: GrayBytes) -> Float32[np.ndarray, "photos 64"]:
    """Images of 8 x 8 pixels as rows of length 1, whatever their brightness and contrast."""
    step = SIDE // _TINY
    small = gray.reshape(len(gray), _TINY, step, _TINY, step).mean((2, 4), dtype=np.float32)
    flat = small.reshape(len(gray), -1)
    return unit_rows(flat - flat.mean(1, keepdims=True), np.zeros(flat.shape[1], np.float32))


def _compare_all(
    photos: SmallImages, others: SmallImages, pairs: Pairs, *, mirrored: bool
) -> Iterator[DuplicatePair]:
    for first in range(0, len(pairs), _AT_ONCE):
        some = pairs[first : first + _AT_ONCE]
        ones, seconds = _as_tensor(photos.gray[some[:, 0]]), _as_tensor(others.gray[some[:, 1]])
        close = _are_close(ones, seconds)
        some = some[close.numpy()]
        if not len(some):
            continue
        likeness, shape = compare_images(ones[close], seconds[close])
        is_same = likeness >= _SAME
        if not is_same.any():
            continue
        warped = _warp(seconds[close][is_same], shape[is_same])
        is_same[is_same.clone()] = agree_everywhere(ones[close][is_same], warped)
        some, likeness = some[is_same.numpy()], likeness[is_same]
        colored = _as_colors(photos, some[:, 0]), _as_colors(others, some[:, 1])
        inside = _inside(COLOR_SIDE)
        aligned = [colored[0], _warp(colored[1], shape[is_same])]
        have_same = have_same_colors(*(images[:, :, inside, inside] for images in aligned))
        for place in torch.nonzero(have_same)[:, 0].tolist():
            one, other = some[place].tolist()
            yield DuplicatePair(one, other, float(likeness[place]), mirrored)


def _as_colors(photos: SmallImages, places: Int64[np.ndarray, " pairs"]) -> Colors:
    return torch.from_numpy(np.ascontiguousarray(photos.color[places])).permute(0, 3, 1, 2).float()


def _are_close(ones: Grays, others: Grays) -> Bool[Tensor, " pairs"]:
    """Whether two images share some detail even before they are aligned: most pairs do not."""
    small = [F.avg_pool2d(images, SIDE // _ROUGH) for images in (ones, others)]
    return _correlate(small[0], small[1], coarse=5) >= _ROUGHLY


def _as_tensor(images: UInt8[np.ndarray, "pairs side side"]) -> Grays:
    return torch.from_numpy(np.ascontiguousarray(images))[:, None].float()


@torch.inference_mode()
def compare_images(ones: Grays, others: Grays) -> tuple[Scores, Shapes]:
    """The correlation of the details of two images (up to 1), the second aligned with the first by
    a shift and a scale in each direction (Lucas and Kanade's method), which are returned too."""
    best = _correlate(ones, others), torch.zeros(len(ones), 4)
    halves = [F.avg_pool2d(images, SIDE // _SMALL) for images in (ones, others)]
    shape = _align(halves[0], halves[1], best[1], _STEPS)
    best = _better(best, (_correlate(ones, _warp(others, shape)), shape))
    close = torch.nonzero((best[0] >= _CLOSE) & (best[0] < _SAME))[:, 0]
    if len(close):
        finer = _align(ones[close], others[close], shape[close], _MORE_STEPS)
        again = _correlate(ones[close], _warp(others[close], finer)), finer
        for whole, part in zip(best, _better((best[0][close], best[1][close]), again), strict=True):
            whole[close] = part
    return best


def _better(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The likeness and shape of either, for each pair."""
    is_better = other[0] > one[0]
    return torch.maximum(one[0], other[0]), torch.where(is_better[:, None], other[1], one[1])


def _align(ones: Grays, others: Grays, shape: Shapes, steps: int) -> Shapes:
    """Shift and scale along x, then along y, that map the first images onto the second."""
    fixed, moving = (_normalize(_blur(images, 3)) for images in (ones, others))
    for _ in range(steps):
        shape = shape + _improve(fixed, _warp(moving, shape))
        shape = shape.clamp(-_MOST_SHIFT, _MOST_SHIFT)
    return shape


def _grid(side: int) -> Float[Tensor, " side"]:
    return (torch.arange(side) + 0.5) * 2 / side - 1


def _warp(images: Pictures, shape: Shapes) -> Pictures:
    line = _grid(images.shape[-1])
    across = shape[:, :1] + (1 + shape[:, 1:2]) * line
    down = shape[:, 2:3] + (1 + shape[:, 3:]) * line
    places = torch.stack(
        [
            across[:, None, :].expand(-1, len(line), -1),
            down[:, :, None].expand(-1, -1, len(line)),
        ],
        dim=-1,
    )
    return F.grid_sample(images, places, padding_mode="border", align_corners=False)


def _improve(ones: Grays, warped: Grays) -> Shapes:
    """The step that brings the warped images closer, by least squares on their slopes."""
    inside = _inside(ones.shape[-1])
    line = _grid(ones.shape[-1])
    half = ones.shape[-1] / 2
    across, down = (
        torch.gradient(warped, dim=dim)[0] * half
        for dim in (3, 2)  # per unit of the grid
    )
    slopes = [across, across * line, down, down * line[:, None]]
    columns = torch.stack([slope[:, 0, inside, inside].flatten(1) for slope in slopes], dim=2)
    missing = (ones - warped)[:, 0, inside, inside].flatten(1)[..., None]
    square = columns.mT @ columns
    size = square.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    square = square + (1e-3 * size + 1e-6) * torch.eye(4)
    return torch.linalg.solve(square, columns.mT @ missing)[..., 0]


def _correlate(ones: Grays, others: Grays, *, coarse: int = _COARSE) -> Scores:
    inside = _inside(ones.shape[-1])
    details = [
        (image - _blur(image, coarse))[:, 0, inside, inside].flatten(1) for image in (ones, others)
    ]
    centered = [values - values.mean(1, keepdim=True) for values in details]
    lengths = [values.norm(dim=1) for values in centered]
    # Images without details are alike in everything, and say nothing.
    return (centered[0] * centered[1]).sum(1) / (lengths[0] * lengths[1]).clamp_min(SIDE)


def agree_everywhere(ones: Grays, others: Grays) -> Bool[Tensor, " pairs"]:
    """Whether details agree in nearly every part of two aligned images, not only along an
    outline that both have: two drawings, or two things of one shape on one table, differ in what is
    around and inside it."""
    inside = _inside(ones.shape[-1])
    parts = []
    for image in (ones, others):
        details = (image - _blur(image, _COARSE))[:, :, inside, inside]
        part = F.unfold(details, _PART, stride=_PART)
        parts.append(part - part.mean(1, keepdim=True))
    lengths = [part.norm(dim=1) for part in parts]
    agreement = (parts[0] * parts[1]).sum(1) / (lengths[0] * lengths[1]).clamp_min(1e-3)
    # Of parts in which there is nothing to see, noise is compared.
    is_plain = torch.maximum(*lengths) < _LEAST_CONTRAST * _PART
    lowest = agreement.masked_fill(is_plain, torch.nan).nanquantile(_LOWEST, dim=1)
    return lowest.nan_to_num(1.0) >= _AGREED


def _inside(side: int) -> slice:
    edge = round(_MARGIN * side)
    return slice(edge, side - edge)


def _blur(images: Grays, width: int) -> Tensor:
    """Each pixel averaged with those around it: along one side, then along the other."""
    padded = F.pad(images, [width // 2] * 4, mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, (width, 1), stride=1), (1, width), stride=1)


def _normalize(images: Grays) -> Tensor:
    mean, spread = images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True)
    return (images - mean) / (spread + 1e-3)


# Added to values from 0 to 255: the color of dark pixels is mostly noise.
_DARK_OFFSET = 24.0
# How far white balance (the logarithm of a factor) and saturation (a factor) may differ.
_MOST_BALANCE, _MOST_SATURATION = 0.5, 2.2
# A black and white photo: none of its pixels, at this small size, is farther from gray.
_GRAY = 0.02
# Of two images the worst pixels, by their share, may be this far apart: at all, since photos are
# recompressed, and relative to the most colorful pixels. Measured: benchmarks/patterns_clean.py.
_WORST, _APART, _OF_COLORS = 0.05, 0.2, 0.5


def have_same_colors(ones: Colors, others: Colors) -> Bool[Tensor, " pairs"]:
    """Images from 0 to 255. One without any colors is a black and white copy of the other."""
    first, second = _hues(ones), _hues(others)
    colors = torch.maximum(_worst(_centered(first)), _worst(_centered(second)))
    apart = _worst(_compare(first, second))
    is_same = (apart <= _APART) | (apart <= _OF_COLORS * colors)
    return is_same | _is_gray(first) | _is_gray(second)


def _hues(images: Colors) -> Hues:
    """Red and blue relative to green, as logarithms: brightness does not count."""
    values = (images.flatten(2) + _DARK_OFFSET).log()
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


def _worst(hues: Hues) -> Scores:
    """The mean length of the longest few percent."""
    lengths = hues.norm(dim=1)
    count = max(1, round(_WORST * lengths.shape[1]))
    return lengths.topk(count, dim=1).values.mean(1)
