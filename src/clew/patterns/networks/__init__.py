"""The image classification networks: the pretrained EfficientNet-Lite0, SE-ResNets of several
sizes, and any of timm's."""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.base.errors import InputError
from clew.patterns.networks.lite0 import EfficientNetLite0, load_lite0
from clew.patterns.networks.se_resnet import SEResNet
from clew.patterns.presets import LITE0, NETWORKS, TIMM, check_network_name

GPU_NETWORK, CPU_NETWORK = "standard", "small"
# The smallest and the largest image size that is chosen by itself. Small photos are enlarged for
# the pretrained network: at their own size, little would be left of them after five halvings, and
# it was trained on photos of 224 pixels. Very many are enlarged less, because it takes long.
_SIZES, _SIZES_OF_LITE0, _LEAST_FOR_FEATURES = (32, 128), (128, 224), 192
MANY_ON_GPU, _MANY_FOR_FEATURES = 20_000, 5_000


def usual_sizes(
    name: str, photos: int, *, on_gpu: bool = False, on_features: bool = False
) -> tuple[int, int]:
    """The image sizes to choose from, in pixels: the smallest and the largest. `on_features` if it
    is trained on what its first blocks make of the photos."""
    if name != LITE0:
        return _SIZES
    smallest, largest = _SIZES_OF_LITE0
    if on_features and photos <= _MANY_FOR_FEATURES:
        smallest = min(_LEAST_FOR_FEATURES, largest)
    elif on_gpu and not on_features and photos <= MANY_ON_GPU:
        smallest = largest
    return smallest, largest


def usual_network(*, on_gpu: bool) -> tuple[str, str]:
    """The default network to train from scratch, and why."""
    if on_gpu:
        return GPU_NETWORK, f"for {NETWORKS[GPU_NETWORK].suits}"
    return (
        CPU_NETWORK,
        f'there is no GPU; `network="{GPU_NETWORK}"` would take about five times as long',
    )


def check_network(name: str | None, *, pretrained: bool) -> None:
    """Check that a network can be built, without allocating memory or downloading weights; None is
    the default. Raises InputError as `build_network` does."""
    name = name or GPU_NETWORK
    if name == LITE0:
        return
    with torch.device("meta"):  # no memory, no values: only whether it can be built
        is_own = name in NETWORKS
        build_network(name, classes=2, image_size=128, pretrained=pretrained and is_own)


def is_network(name: str) -> bool:
    """Whether a training can have used this name."""
    return name == LITE0 or name in NETWORKS or name.startswith(TIMM)


def build_network(
    name: str, *, classes: int, image_size: int, pretrained: bool = False
) -> nn.Module:
    """A network with `features(images)` and `head(features)`; raises InputError for an unknown
    name, or if its library is not installed."""
    if name.startswith(TIMM):
        network = _create(
            name.removeprefix(TIMM), classes=classes, image_size=image_size, pretrained=pretrained
        )
        return TimmNetwork(network)
    if name == LITE0:
        return load_lite0(classes) if pretrained else EfficientNetLite0(classes)
    check_network_name(name, pretrained=pretrained)
    widths, blocks, _ = NETWORKS[name]
    return SEResNet(classes, image_size, widths, blocks)


class TimmNetwork(nn.Module):
    """One of timm's networks as clew uses them."""

    timm: Any  # its methods are only known at run time

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.timm = network

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Tensor:
        return self.timm(images)

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Tensor:
        return self.timm.forward_features(images)

    def head(self, features: Tensor) -> Float[Tensor, "batch classes"]:
        return self.timm.forward_head(features)

    def pool(self, features: Tensor) -> Float[Tensor, "batch features"]:
        """What the last layer takes."""
        return self.timm.forward_head(features, pre_logits=True)


def _create(name: str, *, classes: int, image_size: int, pretrained: bool) -> nn.Module:
    timm = _import_timm()
    if name not in timm.list_models():
        near = ", ".join(timm.list_models(f"*{name}*")[:5]) or "timm.list_models() lists them"
        raise InputError(f'timm has no network "{name}": {near}.')
    try:
        try:  # transformers are built for one size
            return timm.create_model(name, pretrained, num_classes=classes, img_size=image_size)
        except TypeError:  # and convolutions take any
            return timm.create_model(name, pretrained, num_classes=classes)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f'the network "{name}" could not be built for images of {image_size} pixels '
            f"({str(error).splitlines()[0]}): choose another `image_size`, or, if its weights "
            "could not be downloaded, check the connection or omit `pretrained`."
        ) from error


def _import_timm() -> ModuleType:
    try:
        import timm
    except (ImportError, RuntimeError, OSError) as error:  # torchvision built for another torch
        raise InputError(
            "timm networks require the packages timm and torchvision, which cannot be imported "
            f"({str(error).splitlines()[0]}): install them with pip install 'clew[timm]', or "
            f"choose from: {', '.join((LITE0, *NETWORKS))}."
        ) from None
    return timm
