"""How pixel values become a network's input: part of the network, as its weights are."""

from typing import NamedTuple

from torch import nn


class InputScaling(NamedTuple):
    """Values from 0 to 1 are scaled to `(value - mean) / std`, per channel (red, green, blue)."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = InputScaling(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def input_scaling(network: nn.Module) -> InputScaling:
    """The scaling of a network's input: its own `scaling`, or else ImageNet's mean and standard
    deviation."""
    found = getattr(network, "scaling", IMAGENET)
    return found if isinstance(found, InputScaling) else IMAGENET
