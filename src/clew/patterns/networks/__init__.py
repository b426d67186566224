"""The image classifiers: SE-ResNets of several sizes, and the networks of timm."""

from clew.patterns.networks.registry import (
    CPU_NETWORK,
    GPU_NETWORK,
    NETWORKS,
    TIMM,
    build_network,
    check_network,
    usual_network,
)

__all__ = [
    "CPU_NETWORK",
    "GPU_NETWORK",
    "NETWORKS",
    "TIMM",
    "build_network",
    "check_network",
    "usual_network",
]
