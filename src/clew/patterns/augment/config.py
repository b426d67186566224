"""How training images are augmented, what each operation adds to an image's parameters, and whether
the photos may be mirrored."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from clew.base.errors import InputError
from clew.base.settings import check_fraction

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
_NOT_OF_THE_PAPER = ("zoom", "stretch")
# The widest and the narrowest crop, as in torchvision: 4:3 and 3:4.
_MOST_STRETCH = math.log(4 / 3)
_STRONGEST = 30  # the magnitude at which an operation is `_AT_STRONGEST`
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


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """RandAugment (arXiv 1909.13719) applies `ops` operations of `magnitude` (0 to 30) to each
    image; in addition, `zoom` and `shift` move every image a little. With `crop`, random resized
    crops take their place: each keeps at least this share of the image's area, 1 disables them,
    and None lets the training decide. `flip` mirrors half of the images; None decides from the
    photos. `mixup` is the alpha of Mixup (arXiv 1710.09412)."""

    ops: int = 2
    magnitude: float = 9.0
    zoom: float = 0.15
    shift: float = 0.05
    flip: bool | None = None
    mixup: float = 0.2
    crop: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ops <= len(PARAMETERS):
            most = len(PARAMETERS)
            raise InputError(
                f"it must be from 0 to {most} (2 is typical).", setting="ops", value=self.ops
            )
        if not 0 <= self.magnitude <= _STRONGEST:
            raise InputError(
                f"it must be from 0 to {_STRONGEST} (9 is typical).",
                setting="magnitude",
                value=self.magnitude,
            )
        check_fraction(self, "zoom", "shift")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise InputError(
                "it must be greater than 0 and at most 1, which disables crops (0.35 is typical).",
                setting="crop",
                value=self.crop,
            )
        if not (0 <= self.mixup < math.inf):
            raise InputError(
                "it must be 0 (off) or more (0.2 is typical).", setting="mixup", value=self.mixup
            )

    @classmethod
    def nothing(cls) -> "AugmentConfig":
        """Settings that leave images unchanged."""
        return cls(ops=0, zoom=0.0, shift=0.0, flip=False, mixup=0.0, crop=1.0)

    @property
    def is_cropping(self) -> bool:
        return self.crop is not None and self.crop < 1


def change_table(magnitude: float) -> Float[Tensor, "changes parameters"]:
    """What each operation adds to an image's parameters: all operations in one direction, then all
    in the other. The first one changes nothing, as in the paper."""
    rows = [[0.0] * len(PARAMETERS)]
    for place, name in enumerate(PARAMETERS):
        if name in _NOT_OF_THE_PAPER:
            continue
        row = [0.0] * len(PARAMETERS)
        row[place] = 1.0 if name in _SWITCHES else _AT_STRONGEST[name] * magnitude / _STRONGEST
        rows.append(row)
    there = torch.tensor(rows)
    back = torch.tensor([[v if n in _ONE_WAY else -v for v, n in _named(row)] for row in rows])
    return torch.cat([there, back])


def jitter_row(config: AugmentConfig) -> Float[Tensor, " parameters"]:
    """The range of the zoom and shift that every image gets in addition; 0 if it is cropped."""
    if config.is_cropping:
        return torch.zeros(len(PARAMETERS))
    far = {"zoom": config.zoom, "shift_x": config.shift, "shift_y": config.shift}
    return torch.tensor([far.get(name, 0.0) for name in PARAMETERS])


def draw_crops(
    least_area: float, random: Float[Tensor, "count parameters"]
) -> Float[Tensor, "count parameters"]:
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


def _named(row: list[float]) -> list[tuple[float, str]]:
    return list(zip(row, PARAMETERS, strict=True))


def decide_flip(
    images: UInt8[np.ndarray, "photos side side 3"], labels: Int[np.ndarray, " photos"]
) -> tuple[bool, str]:
    """Whether mirroring keeps the classes, and why.

    The nearest neighbor of a photo usually has the same class. If that of its mirror image has it
    clearly less often, mirroring would teach the network wrong labels.
    """
    chosen = np.random.default_rng(0).permutation(len(images))[:_MOST_COMPARED]
    looks = _looks(torch.from_numpy(images[chosen]))
    classes = torch.from_numpy(np.asarray(labels)[chosen])
    mirrored = looks.flip(2)
    plain = _have_same_class(looks, looks, classes)
    turned = _have_same_class(mirrored, looks, classes)
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


def _have_same_class(asked: Tensor, others: Tensor, classes: Tensor) -> Bool[np.ndarray, " photos"]:
    near = torch.cdist(asked.flatten(1), others.flatten(1))
    near.fill_diagonal_(torch.inf)  # not the photo itself, nor its own mirror image
    return (classes[near.argmin(1)] == classes).numpy()
