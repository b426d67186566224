"""Applies augmentation parameters to images in plain PyTorch: for CPUs, and as the reference for
the GPU kernel."""

from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.patterns.augment.config import PARAMETERS

GRAY = (0.299, 0.587, 0.114)
SAMPLED_SIDE = 64
_BLUR = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13


@torch.compiler.disable  # compiling takes minutes, and this is only a hundredth of a step
def apply_changes(
    images: UInt8[Tensor, "batch side side 3"],
    parameters: Float[Tensor, "batch parameters"],
    mirrored: Float[Tensor, " batch"],
) -> Float[Tensor, "batch side side 3"]:
    """Apply the augmentation: pixel values are mapped through one table per image, then the image
    is moved, recolored and sharpened."""
    table = value_table(images, parameters)
    flat = images.permute(0, 3, 1, 2).reshape(*table.shape[:2], -1)
    values = table.gather(2, flat.long()).reshape(len(images), 3, *images.shape[1:3])
    grid = F.affine_grid(inverse_matrix(parameters, mirrored), list(values.shape), False)
    moved = F.grid_sample(values, grid, "bilinear", "reflection", False)
    for name, change in (("color", _color), ("sharpness", _sharpen)):
        _change_some(moved, column(parameters, name), change)
    return moved.permute(0, 2, 3, 1)


def column(parameters: Tensor, name: str) -> Tensor:
    return parameters[:, PARAMETERS.index(name)]


def value_table(
    images: UInt8[Tensor, "batch side side 3"], parameters: Float[Tensor, "batch parameters"]
) -> Float[Tensor, "batch 3 256"]:
    """The lookup table of each image: the new value of every value of every channel. Frequencies
    are counted over every n-th pixel."""
    step = max(1, images.shape[1] // SAMPLED_SIDE)
    counts = _count_values(images[:, ::step, ::step])
    values = torch.arange(256, device=images.device) / 255
    table = values.expand(len(images), 3, 256)
    table = torch.where(_is_on(parameters, "autocontrast"), _stretch(counts, values), table)
    table = torch.where(_is_on(parameters, "equalize"), _equalize(counts, values), table)
    table = _posterize(table, _each(parameters, "posterize"))
    table = torch.where(table >= 1 - _each(parameters, "solarize") + 1e-4, 1 - table, table)
    table = table * _each(parameters, "brightness").exp()
    mean = _mean_gray(counts, values)[:, None, None]
    return (mean + (table - mean) * _each(parameters, "contrast").exp()).clamp(0, 1)


def inverse_matrix(
    parameters: Float[Tensor, "batch parameters"], mirrored: Float[Tensor, " batch"]
) -> Float[Tensor, "batch 2 3"]:
    """The affine matrix from positions in the new image to positions in the old one, both in
    coordinates from -1 to 1."""
    angle, zoom = column(parameters, "angle"), column(parameters, "zoom").neg().exp()
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    shear_x, shear_y = column(parameters, "shear_x"), column(parameters, "shear_y")
    wide = (column(parameters, "stretch") / 2).exp()
    rows = (
        (cosine + shear_x * sine) * mirrored * wide,
        (-sine + shear_x * cosine) / wide,
        2 * column(parameters, "shift_x"),
        (sine + shear_y * cosine) * mirrored * wide,
        (cosine - shear_y * sine) / wide,
        2 * column(parameters, "shift_y"),
    )
    return torch.stack(rows, dim=1).reshape(-1, 2, 3)


def _each(parameters: Tensor, name: str) -> Tensor:
    return column(parameters, name)[:, None, None]


def _is_on(parameters: Tensor, name: str) -> Tensor:
    return _each(parameters, name) > 0


def _count_values(images: UInt8[Tensor, "batch rows columns 3"]) -> Float[Tensor, "batch 3 256"]:
    flat = images.permute(0, 3, 1, 2).reshape(len(images), 3, -1).long()
    counts = torch.zeros(len(images), 3, 256, device=images.device)
    return counts.scatter_add_(2, flat, torch.ones((), device=images.device).expand(flat.shape))


def _stretch(
    counts: Float[Tensor, "batch 3 256"], values: Float[Tensor, " 256"]
) -> Float[Tensor, "batch 3 256"]:
    seen = counts > 0
    low = torch.where(seen, values, 1.0).amin(2, keepdim=True)
    high = torch.where(seen, values, 0.0).amax(2, keepdim=True)
    wide = high > low
    return torch.where(wide, ((values - low) / (high - low).clamp_min(1 / 255)).clamp(0, 1), values)


def _equalize(
    counts: Float[Tensor, "batch 3 256"], values: Float[Tensor, " 256"]
) -> Float[Tensor, "batch 3 256"]:
    below = counts.cumsum(2)
    first = torch.where(counts > 0, below, torch.inf).amin(2, keepdim=True)
    rest = below[:, :, -1:] - first
    return torch.where(rest > 0, ((below - first) / rest.clamp_min(1)).clamp(0, 1), values)


def _posterize(table: Tensor, bits: Tensor) -> Tensor:
    step = torch.exp2((bits + 0.5).floor())
    return torch.where(step > 1, (table * 255 / step + 1e-4).floor() * step / 255, table)


def _mean_gray(
    counts: Float[Tensor, "batch 3 256"], values: Float[Tensor, " 256"]
) -> Float[Tensor, " batch"]:
    means = (counts * values).sum(2) / counts.sum(2)
    return means @ means.new_tensor(GRAY)


def _change_some(
    images: Float[Tensor, "batch 3 side side"],
    logs: Float[Tensor, " batch"],
    change: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Change in place only the images that need it: they are few, and sharpening is the most
    expensive operation."""
    some = logs.nonzero()[:, 0]
    if len(some):
        images[some] = change(images[some], logs[some].exp()[:, None, None, None]).clamp(0, 1)


def _color(images: Float[Tensor, "some 3 side side"], factor: Tensor) -> Tensor:
    gray = torch.einsum("bchw,c->bhw", images, images.new_tensor(GRAY))[:, None]
    return gray + (images - gray) * factor


def _sharpen(images: Float[Tensor, "some 3 side side"], factor: Tensor) -> Tensor:
    kernel = _BLUR.to(images).expand(3, 1, 3, 3)
    blurred = F.conv2d(F.pad(images, (1, 1, 1, 1), "replicate"), kernel, groups=3)
    return blurred + (images - blurred) * factor
