"""Near duplicates: the same photo resized, recompressed, cropped a little, or mirrored. Features
propose pairs; pixels decide, after one image has been aligned with the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.patterns.cleaning.neighbors import Neighbors, find_neighbors, unit_rows

SIDE = 48  # of the gray images that are compared
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
# Each photo is compared with this many others, if they are this much alike at 8 x 8 pixels.
_PROPOSED, _ALIKE = 3, 0.8
_ROUGH, _ROUGHLY = 12, 0.4  # what images of this side share before they are aligned


@dataclass(frozen=True, kw_only=True)
class DuplicatePair:
    """Two photos, by index, that show the same image; `likeness` is their correlation (up to 1)."""

    first: int
    second: int
    likeness: float
    mirrored: bool


def make_gray(
    images: UInt8[np.ndarray, "photos size size 3"],
) -> UInt8[np.ndarray, "photos 48 48"]:
    """The images as they are compared."""
    values = torch.from_numpy(images).permute(0, 3, 1, 2).float().mean(1, keepdim=True)
    small = F.interpolate(values, (SIDE, SIDE), mode="bilinear", antialias=True)
    return small[:, 0].round().clamp(0, 255).byte().numpy()


def find_duplicates(
    gray: UInt8[np.ndarray, "photos 48 48"], *likely: Neighbors
) -> list[DuplicatePair]:
    """The pairs of photos that show the same image, the most alike first. Besides photos that are
    alike at a glance, the neighbors in `likely` are compared."""
    turned = gray[:, :, ::-1]
    return compare_pairs(gray, _propose(gray, gray, likely), _propose(gray, turned, likely))


def compare_pairs(
    gray: UInt8[np.ndarray, "photos 48 48"],
    plain: Int64[np.ndarray, "pairs 2"],
    mirrored: Int64[np.ndarray, "pairs 2"] | None = None,
) -> list[DuplicatePair]:
    """Those of the pairs that show the same image, the most alike first. The second photos of
    `mirrored` (the same pairs, if None) are compared mirrored."""
    found = [
        *_compare_all(gray, gray, plain, mirrored=False),
        *_compare_all(
            gray, gray[:, :, ::-1], plain if mirrored is None else mirrored, mirrored=True
        ),
    ]
    best: dict[tuple[int, int], DuplicatePair] = {}
    for pair in sorted(found, key=lambda pair: pair.likeness):
        best[pair.first, pair.second] = pair
    return sorted(best.values(), key=lambda pair: (-pair.likeness, pair.first, pair.second))


def _propose(
    gray: UInt8[np.ndarray, "photos 48 48"],
    others: UInt8[np.ndarray, "photos 48 48"],
    likely: Sequence[Neighbors],
) -> Int64[np.ndarray, "pairs 2"]:
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


def _glance(gray: UInt8[np.ndarray, "photos 48 48"]) -> Float32[np.ndarray, "photos 64"]:
    """Images of 8 x 8 pixels as rows of length 1, whatever their brightness and contrast."""
    step = SIDE // _TINY
    small = gray.reshape(len(gray), _TINY, step, _TINY, step).mean((2, 4), dtype=np.float32)
    flat = small.reshape(len(gray), -1)
    return unit_rows(flat - flat.mean(1, keepdims=True), np.zeros(flat.shape[1], np.float32))


def _compare_all(
    gray: UInt8[np.ndarray, "photos 48 48"],
    others: UInt8[np.ndarray, "photos 48 48"],
    pairs: Int64[np.ndarray, "pairs 2"],
    *,
    mirrored: bool,
) -> Iterator[DuplicatePair]:
    for first in range(0, len(pairs), _AT_ONCE):
        some = pairs[first : first + _AT_ONCE]
        ones, seconds = _as_tensor(gray[some[:, 0]]), _as_tensor(others[some[:, 1]])
        close = _are_close(ones, seconds)
        some = some[close.numpy()]
        if not len(some):
            continue
        likeness = compare_images(ones[close], seconds[close])
        for place in torch.nonzero(likeness >= _SAME)[:, 0].tolist():
            one, other = some[place].tolist()
            yield DuplicatePair(
                first=one, second=other, likeness=float(likeness[place]), mirrored=mirrored
            )


def _are_close(
    ones: Float[Tensor, "pairs 1 side side"], others: Float[Tensor, "pairs 1 side side"]
) -> Bool[Tensor, " pairs"]:
    """Whether two images share some detail even before they are aligned: most pairs do not."""
    small = [F.avg_pool2d(images, SIDE // _ROUGH) for images in (ones, others)]
    return _correlate(small[0], small[1], coarse=5) >= _ROUGHLY


def _as_tensor(images: UInt8[np.ndarray, "pairs side side"]) -> Float[Tensor, "pairs 1 side side"]:
    return torch.from_numpy(np.ascontiguousarray(images))[:, None].float()


@torch.inference_mode()
def compare_images(
    ones: Float[Tensor, "pairs 1 side side"], others: Float[Tensor, "pairs 1 side side"]
) -> Float[Tensor, " pairs"]:
    """The correlation of the details of two images (up to 1), the second aligned with the first by
    a shift and a scale in each direction (Lucas and Kanade's method)."""
    likeness = _correlate(ones, others)
    halves = [F.avg_pool2d(images, SIDE // _SMALL) for images in (ones, others)]
    shape = _align(halves[0], halves[1], torch.zeros(len(ones), 4), _STEPS)
    likeness = torch.maximum(likeness, _correlate(ones, _warp(others, shape)))
    close = torch.nonzero((likeness >= _CLOSE) & (likeness < _SAME))[:, 0]
    if len(close):
        better = _align(ones[close], others[close], shape[close], _MORE_STEPS)
        again = _correlate(ones[close], _warp(others[close], better))
        likeness[close] = torch.maximum(likeness[close], again)
    return likeness


def _align(
    ones: Float[Tensor, "pairs 1 side side"],
    others: Float[Tensor, "pairs 1 side side"],
    shape: Float[Tensor, "pairs 4"],
    steps: int,
) -> Float[Tensor, "pairs 4"]:
    """Shift and scale along x, then along y, that map the first images onto the second."""
    fixed, moving = (_normalize(_blur(images, 3)) for images in (ones, others))
    for _ in range(steps):
        shape = shape + _improve(fixed, _warp(moving, shape))
        shape = shape.clamp(-_MOST_SHIFT, _MOST_SHIFT)
    return shape


def _grid(side: int) -> Float[Tensor, " side"]:
    return (torch.arange(side) + 0.5) * 2 / side - 1


def _warp(
    images: Float[Tensor, "pairs 1 side side"], shape: Float[Tensor, "pairs 4"]
) -> Float[Tensor, "pairs 1 side side"]:
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


def _improve(
    ones: Float[Tensor, "pairs 1 side side"], warped: Float[Tensor, "pairs 1 side side"]
) -> Float[Tensor, "pairs 4"]:
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


def _correlate(
    ones: Float[Tensor, "pairs 1 side side"],
    others: Float[Tensor, "pairs 1 side side"],
    *,
    coarse: int = _COARSE,
) -> Float[Tensor, " pairs"]:
    inside = _inside(ones.shape[-1])
    details = [
        (image - _blur(image, coarse))[:, 0, inside, inside].flatten(1) for image in (ones, others)
    ]
    centered = [values - values.mean(1, keepdim=True) for values in details]
    lengths = [values.norm(dim=1) for values in centered]
    # Images without details are alike in everything, and say nothing.
    return (centered[0] * centered[1]).sum(1) / (lengths[0] * lengths[1]).clamp_min(SIDE)


def _inside(side: int) -> slice:
    edge = round(_MARGIN * side)
    return slice(edge, side - edge)


def _blur(images: Float[Tensor, "pairs 1 side side"], width: int) -> Tensor:
    """Each pixel averaged with those around it: along one side, then along the other."""
    padded = F.pad(images, [width // 2] * 4, mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, (width, 1), stride=1), (1, width), stride=1)


def _normalize(images: Float[Tensor, "pairs 1 side side"]) -> Tensor:
    mean, spread = images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True)
    return (images - mean) / (spread + 1e-3)
