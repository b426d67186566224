"""Training pictures changed anew every time they are seen, each by itself, on the device."""

from clew.patterns.augment.config import AugmentConfig
from clew.patterns.augment.flip import decide_flip
from clew.patterns.augment.mixup import Mixup
from clew.patterns.augment.rand_augment import RandAugment

__all__ = ["AugmentConfig", "Mixup", "RandAugment", "decide_flip"]
