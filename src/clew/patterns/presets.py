"""The networks and the augmentation to choose from, checked without PyTorch, which takes seconds to
import."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from clew.base.errors import InputError
from clew.base.settings import check_fraction

TIMM = "timm:"
LITE0 = "lite0"


class NetworkPreset(NamedTuple):
    """Channels and blocks of the four stages, and what the network is for."""

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    suits: str


NETWORKS = {
    "tiny": NetworkPreset(
        (16, 32, 64, 128), (1, 1, 1, 1), "quick experiments or very slow machines"
    ),
    "small": NetworkPreset((32, 64, 128, 256), (2, 2, 2, 2), "computers without a GPU"),
    "standard": NetworkPreset((64, 128, 256, 512), (3, 3, 3, 3), "most photo collections"),
    "large": NetworkPreset((96, 192, 384, 768), (3, 4, 6, 3), "many photos and a GPU"),
}


def check_network_name(name: str, *, pretrained: bool) -> None:
    """Raises InputError for an unknown network, or one without pretrained weights; timm's own names
    are checked when it is built."""
    if name == LITE0 or name.startswith(TIMM):
        return
    if name not in NETWORKS:
        known = ", ".join((LITE0, *NETWORKS))
        raise InputError(
            f'unknown network "{name}": choose from: {known}, or timm:NAME for a timm network, '
            "such as timm:resnet18."
        )
    if pretrained:
        raise InputError(
            f'"{name}" has no pretrained weights: omit `pretrained`, or give '
            f'`network="{LITE0}"` or a timm network, such as timm:resnet18.'
        )


# RandAugment's largest number of operations, and the magnitude at which each is strongest.
_MOST_OPS, STRONGEST = 15, 30


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
        if not 0 <= self.ops <= _MOST_OPS:
            raise InputError(
                f"it must be from 0 to {_MOST_OPS} (2 is typical).", setting="ops", value=self.ops
            )
        if not 0 <= self.magnitude <= STRONGEST:
            raise InputError(
                f"it must be from 0 to {STRONGEST} (9 is typical).",
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
