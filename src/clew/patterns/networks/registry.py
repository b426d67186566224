"""The networks that tell patterns apart: SE-ResNets of three sizes, and any of timm's."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clew.errors import InputError
from clew.patterns.networks.se_resnet import SEResNet, SEResNetConfig

TIMM = "timm:"
GPU_NETWORK, CPU_NETWORK = "standard", "small"


@dataclass(frozen=True, kw_only=True)
class NetworkPreset:
    """Channels and blocks of the four stages, and what the network is for."""

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    suits: str


NETWORKS = {
    "tiny": NetworkPreset(
        widths=(16, 32, 64, 128), blocks=(1, 1, 1, 1), suits="a first try, or a very slow computer"
    ),
    "small": NetworkPreset(
        widths=(32, 64, 128, 256), blocks=(2, 2, 2, 2), suits="computers without a GPU"
    ),
    "standard": NetworkPreset(
        widths=(64, 128, 256, 512), blocks=(3, 3, 3, 3), suits="most sets of photos"
    ),
    "large": NetworkPreset(
        widths=(96, 192, 384, 768), blocks=(3, 4, 6, 3), suits="many photos and a GPU"
    ),
}


def usual_network(*, on_gpu: bool) -> tuple[str, str]:
    """The network that is taken when nobody says, and why."""
    if on_gpu:
        return GPU_NETWORK, f"for {NETWORKS[GPU_NETWORK].suits}"
    return CPU_NETWORK, f'as there is no GPU; `network="{GPU_NETWORK}"` takes five times as long'


def check_network(name: str | None, *, pretrained: bool) -> None:
    """Raises InputError as `build_network` does; None is the usual one. Nothing is downloaded."""
    name = name or GPU_NETWORK
    with torch.device("meta"):  # no memory, no numbers: only whether it can be built
        build_network(
            name,
            classes=2,
            image_size=128,
            pretrained=pretrained and not name.startswith(TIMM),
        )


def build_network(
    name: str, *, classes: int, image_size: int, pretrained: bool = False
) -> nn.Module:
    """A network with `features(images)` and `head(features)`; raises InputError for a name that is
    not known, or whose library is not installed."""
    if name.startswith(TIMM):
        network = _create(
            name.removeprefix(TIMM), classes=classes, image_size=image_size, pretrained=pretrained
        )
        return TimmNetwork(network)
    if name not in NETWORKS:
        raise InputError(
            f'there is no network "{name}": choose one of {", ".join(NETWORKS)}, or '
            f"timm:NAME for one of timm's, such as timm:resnet18."
        )
    if pretrained:
        raise InputError(
            f'`pretrained` goes with networks of timm, and "{name}" is clew\'s own, which starts '
            f'from scratch: leave it out, or give `network="timm:resnet18"`.'
        )
    preset = NETWORKS[name]
    return SEResNet(
        SEResNetConfig(
            classes=classes, image_size=image_size, widths=preset.widths, blocks=preset.blocks
        )
    )


class TimmNetwork(nn.Module):
    """One of timm's networks as clew uses them."""

    timm: Any  # its methods are known at run time alone

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.timm = network

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Tensor:
        return self.timm(images)

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Tensor:
        return self.timm.forward_features(images)

    def head(self, features: Tensor) -> Float[Tensor, "batch classes"]:
        return self.timm.forward_head(features)


def _create(name: str, *, classes: int, image_size: int, pretrained: bool) -> nn.Module:
    timm = _import_timm()
    if name not in timm.list_models():
        near = ", ".join(timm.list_models(f"*{name}*")[:5]) or "timm.list_models() names them"
        raise InputError(f'timm has no network "{name}": {near}.')
    try:
        try:  # transformers are made for one size
            return timm.create_model(name, pretrained, num_classes=classes, img_size=image_size)
        except TypeError:  # and convolutions take any
            return timm.create_model(name, pretrained, num_classes=classes)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f'the network "{name}" could not be made for pictures of {image_size} pixels '
            f"({str(error).splitlines()[0]}): check the connection to the hub or leave "
            f"`pretrained` out, or choose another `image_size`."
        ) from error


def _import_timm() -> ModuleType:
    try:
        import timm
    except (ImportError, RuntimeError, OSError) as error:  # torchvision built for another torch
        raise InputError(
            f"networks of timm need the packages timm and torchvision, which cannot be used here "
            f"({str(error).splitlines()[0]}): install them with pip install 'clew[timm]', or take "
            f"one of {', '.join(NETWORKS)}."
        ) from None
    return timm
