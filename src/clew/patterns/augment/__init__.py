"""Random augmentation of training images, each on its own, on the device."""

from clew.patterns.augment.config import AugmentConfig, decide_flip
from clew.patterns.augment.layers import Mixup, RandAugment

__all__ = ["AugmentConfig", "Mixup", "RandAugment", "decide_flip"]
