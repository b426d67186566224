"""How training images are augmented, in plain PyTorch: what each operation adds to an image's
parameters, how these are applied (for CPUs, and as the reference for the GPU kernel), and whether
the photos may be mirrored."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.patterns.presets import STRONGEST, AugmentConfig

# The parameters of an image; all are 0 if it stays unchanged. Two operations of the same kind add
# up, which is why factors are kept as logarithms.
PARAMETERS = (
    "angle",  # radians
    "shear_x",
    "shear_y",
    "shift_x",  # in fractions of the image's side
    "shift_y",
    "zoom",  # log of the factor
    "brightness",  # log of the factor
    "contrast",
    "color",
    "sharpness",
    "posterize",  # bits that are dropped
    "solarize",  # how far below white pixels start to be inverted
    "autocontrast",  # more than 0 stretches each channel to the whole range
    "equalize",  # more than 0 makes all values equally frequent
    "stretch",  # log of the width of what is seen, relative to its height
)
# The widest and the narrowest crop, as in torchvision: 4:3 and 3:4.
_MOST_STRETCH = math.log(4 / 3)
# The operations of the paper that have a strength.
_AT_STRONGEST = {
    "angle": math.radians(30),
    "shear_x": 0.3,
    "shear_y": 0.3,
    "shift_x": 0.45,
    "shift_y": 0.45,
    "brightness": 0.9,
    "contrast": 0.9,
    "color": 0.9,
    "sharpness": 0.9,
    "posterize": 4.0,
    "solarize": 1.0,
}
_ONE_WAY = ("posterize", "solarize", "autocontrast", "equalize")
_SWITCHES = ("autocontrast", "equalize")
_MOST_COMPARED = 2000
_COMPARED_SIDE = 16
# Chance alone makes the two fractions differ by a few points; and where neighbors say little about
# the class, by a large share of them (McNemar's test).
_MAY_LOSE, _STANDARD_ERRORS = 0.9, 2
# Photos of one scene are this much nearer to each other than the nearest other mirror image is.
_OF_ONE_SCENE = 0.8
GRAY = (0.299, 0.587, 0.114)
SAMPLED_SIDE = 64
_BLUR = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13

Images = UInt8[Tensor, "batch side side 3"]
Values = Float[Tensor, "batch side side 3"]  # pixels from 0 to 1
Parameters = Float[Tensor, "batch parameters"]  # those of PARAMETERS
Signs = Float[Tensor, " batch"]  # -1 mirrors an image, 1 does not
Tables = Float[Tensor, "batch 3 256"]  # of the values of each channel


def change_table(magnitude: float) -> Float[Tensor, "changes parameters"]:
    """What each operation adds to an image's parameters: all operations in one direction, then all
    in the other. The first one changes nothing, as in the paper."""
    strengths = {name: most * magnitude / STRONGEST for name, most in _AT_STRONGEST.items()}
    strengths |= dict.fromkeys(_SWITCHES, 1.0)
    changes: list[dict[str, float]] = [{}, *({name: strengths[name]} for name in strengths)]
    there = torch.tensor([[change.get(name, 0.0) for name in PARAMETERS] for change in changes])
    is_one_way = torch.tensor([name in _ONE_WAY for name in PARAMETERS])
    return torch.cat([there, torch.where(is_one_way, there, -there)])


def jitter_row(config: AugmentConfig) -> Float[Tensor, " parameters"]:
    """The range of the zoom and shift that every image gets in addition; 0 if it is cropped."""
    if config.is_cropping:
        return torch.zeros(len(PARAMETERS))
    far = {"zoom": config.zoom, "shift_x": config.shift, "shift_y": config.shift}
    return torch.tensor([far.get(name, 0.0) for name in PARAMETERS])


def draw_crops(least_area: float, random: Parameters) -> Parameters:
    """Random resized crops (arXiv 1409.4842) as parameters to add, from uniform random numbers: the
    share of the area, the aspect ratio, and where in the image."""
    zoom, stretch, left, top = (
        random[:, PARAMETERS.index(name)] for name in ("zoom", "stretch", "shift_x", "shift_y")
    )
    side = (least_area + (1 - least_area) * zoom).sqrt()
    aspect = ((stretch - 0.5) * _MOST_STRETCH).exp()
    width, height = (side * aspect).clamp_max(1), (side / aspect).clamp_max(1)
    drawn = {
        "zoom": -(width * height).log() / 2,
        "stretch": (width / height).log(),
        "shift_x": (left - 0.5) * (1 - width),
        "shift_y": (top - 0.5) * (1 - height),
    }
    none = torch.zeros_like(zoom)
    return torch.stack([drawn.get(name, none) for name in PARAMETERS], dim=1)


def decide_flip(
    images: UInt8[np.ndarray, "photos side side 3"], labels: Int[np.ndarray, " photos"]
) -> tuple[bool, str]:
    """Whether mirroring keeps the classes, and why.

    The nearest neighbor of a photo usually has the same class. If that of its mirror image has it
    clearly less often, mirroring would teach the network wrong labels. Photos of one burst, or of
    one scene, are much nearer to each other than to any mirror image, which says nothing about
    classes: they are not compared with each other.
    """
    chosen = np.random.default_rng(0).permutation(len(images))[:_MOST_COMPARED]
    looks = _looks(torch.from_numpy(images[chosen]))
    classes = torch.from_numpy(np.asarray(labels)[chosen])
    plain, turned = _have_same_class(looks, classes)
    lost, won = int((plain & ~turned).sum()), int((turned & ~plain).sum())
    measured = (
        f"the nearest neighbor has the same class for {plain.mean():.0%} of photos, and for "
        f"{turned.mean():.0%} of flipped ones"
    )
    is_clear = lost - won > _STANDARD_ERRORS * math.sqrt(lost + won)
    if is_clear and turned.mean() < _MAY_LOSE * plain.mean():
        return False, f"left and right seem to matter: {measured}"
    return True, measured


def _looks(images: UInt8[Tensor, "photos side side 3"]) -> Tensor:
    small = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), _COMPARED_SIDE).permute(
        0, 2, 3, 1
    )
    small = small - small.mean(dim=(1, 2, 3), keepdim=True)
    return small / small.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-3)


def _have_same_class(looks: Tensor, classes: Tensor) -> list[Bool[np.ndarray, " photos"]]:
    """Whether the nearest other photo has the same class: of each photo, and of its mirror image.
    Photos of one scene do not count, unless there are no others of the class."""
    from scipy.sparse.csgraph import connected_components  # slow to import

    near = [torch.cdist(asked.flatten(1), looks.flatten(1)) for asked in (looks, looks.flip(2))]
    for distances in near:
        distances.fill_diagonal_(torch.inf)  # not the photo itself, nor its own mirror image
    alike = near[0] < _OF_ONE_SCENE * near[1].amin(1, keepdim=True)
    _, scenes = connected_components(alike.numpy())
    of_one_scene = torch.from_numpy(scenes[:, None] == scenes)
    of_others = (classes[:, None] == classes) & ~of_one_scene & near[0].isfinite()
    of_one_scene &= of_others.any(1, keepdim=True)
    nearest = [distances.masked_fill(of_one_scene, torch.inf).argmin(1) for distances in near]
    return [(classes[found] == classes).numpy() for found in nearest]


@torch.compiler.disable  # compiling takes minutes, and this is only a hundredth of a step
def apply_changes(images: Images, parameters: Parameters, mirrored: Signs) -> Values:
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


def value_table(images: Images, parameters: Parameters) -> Tables:
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


def inverse_matrix(parameters: Parameters, mirrored: Signs) -> Float[Tensor, "batch 2 3"]:
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


def _count_values(images: UInt8[Tensor, "batch rows columns 3"]) -> Tables:
    flat = images.permute(0, 3, 1, 2).reshape(len(images), 3, -1).long()
    counts = torch.zeros(len(images), 3, 256, device=images.device)
    return counts.scatter_add_(2, flat, torch.ones((), device=images.device).expand(flat.shape))


def _stretch(counts: Tables, values: Float[Tensor, " 256"]) -> Tables:
    seen = counts > 0
    low = torch.where(seen, values, 1.0).amin(2, keepdim=True)
    high = torch.where(seen, values, 0.0).amax(2, keepdim=True)
    wide = high > low
    return torch.where(wide, ((values - low) / (high - low).clamp_min(1 / 255)).clamp(0, 1), values)


def _equalize(counts: Tables, values: Float[Tensor, " 256"]) -> Tables:
    below = counts.cumsum(2)
    first = torch.where(counts > 0, below, torch.inf).amin(2, keepdim=True)
    rest = below[:, :, -1:] - first
    return torch.where(rest > 0, ((below - first) / rest.clamp_min(1)).clamp(0, 1), values)


def _posterize(table: Tensor, bits: Tensor) -> Tensor:
    step = torch.exp2((bits + 0.5).floor())
    return torch.where(step > 1, (table * 255 / step + 1e-4).floor() * step / 255, table)


def _mean_gray(counts: Tables, values: Float[Tensor, " 256"]) -> Float[Tensor, " batch"]:
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
