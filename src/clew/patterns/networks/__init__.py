"""The image classifiers: the pretrained EfficientNet-Lite0, SE-ResNets of several sizes, and the
networks of timm."""

from clew.patterns.networks.registry import (
    CPU_NETWORK,
    GPU_NETWORK,
    LITE0,
    NETWORKS,
    TIMM,
    build_network,
    check_network,
    is_network,
    usual_network,
    usual_sizes,
)
from clew.patterns.networks.scaling import IMAGENET, InputScaling, input_scaling

__all__ = [
    "CPU_NETWORK",
    "GPU_NETWORK",
    "IMAGENET",
    "LITE0",
    "NETWORKS",
    "TIMM",
    "InputScaling",
    "build_network",
    "check_network",
    "input_scaling",
    "is_network",
    "usual_network",
    "usual_sizes",
]
