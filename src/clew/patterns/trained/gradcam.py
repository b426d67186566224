"""Grad-CAM: where in a photo the network found evidence for a class. The last feature maps,
weighted by how much the class's logit rises with each (Selvaraju et al., 2017)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional

from clew.base.errors import InputError
from clew.patterns.networks.classifier import normalize
from clew.patterns.networks.lite0 import SameConv2d
from clew.patterns.trained.model import PatternModel

_AT_ONCE = 16


def heat_maps(
    model: PatternModel,
    images: UInt8[np.ndarray, "batch size size 3"],
    classes: Int64[np.ndarray, " batch"],
) -> Float32[np.ndarray, "batch size size"]:
    """Heat maps from 0 to 1, where 1 is the strongest evidence for the image's class in `classes`
    (indices into `model.classes`). All 0 if there is none. Raises InputError like `check_maps`."""
    parts = [
        _heat(model, images[start : start + _AT_ONCE], classes[start : start + _AT_ONCE])
        for start in range(0, len(images), _AT_ONCE)
    ]
    empty = np.zeros((0, *images.shape[1:3]), np.float32)
    return np.concatenate([empty, *parts])


def check_maps(model: PatternModel) -> None:
    """Raises InputError for a network whose last features are not a map of the photo."""
    _features(model, np.zeros((1, model.image_size, model.image_size, 3), np.uint8))


@torch.no_grad()
def _features(
    model: PatternModel, images: np.ndarray
) -> Float32[Tensor, "batch maps rows columns"]:
    pixels = normalize(torch.as_tensor(images, device=model.device), model.network)
    network: Any = model.network
    found = network.features(pixels).float()
    if found.ndim != 4 or min(found.shape[2:]) < 2:
        raise InputError(
            f'the last features of the network in "{model.folder}" have shape '
            f"{tuple(found.shape)}, which is not a spatial feature map: Grad-CAM requires a "
            "convolutional network."
        )
    return found


def _heat(model: PatternModel, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    features = _features(model, images)
    weights = _gradients(model, features, classes).mean((2, 3), keepdim=True)
    heat = (weights * features).sum(1, keepdim=True).clamp_min(0)
    heat = _spread(heat, model).squeeze(1).clamp_min(0)
    return _to_unit(heat).cpu().numpy()


def _gradients(model: PatternModel, features: Tensor, classes: np.ndarray) -> Tensor:
    """The gradients of each image's class logit with respect to its feature maps; only the maps are
    traced back."""
    network: Any = model.network
    places = torch.as_tensor(classes, device=features.device)[:, None]
    with torch.enable_grad():
        features = features.detach().requires_grad_()
        logits = network.head(features).gather(1, places)
        return torch.autograd.grad(logits.sum(), features)[0]


def _spread(heat: Tensor, model: PatternModel) -> Tensor:
    """Resized to the photo, each position of the map over the pixel that it is centered on."""
    rows, columns = (_places(model, count).to(heat.device) for count in heat.shape[2:])
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=2)
    return functional.grid_sample(
        heat,
        grid.expand(len(heat), *grid.shape),
        mode="bicubic",
        padding_mode="border",
        align_corners=True,
    )


def _places(model: PatternModel, count: int) -> Tensor:
    """Where in a map of `count` positions each pixel lies, from -1 (the first) to 1 (the last).

    Stretching maps as if a position were always in the middle of its stride would shift them by
    half a position, an eighth of the photo.
    """
    pixels, step = torch.arange(model.image_size), model.image_size / count
    center = _find_center(model.network)
    return 2 * ((pixels + center) / step - center) / (count - 1) - 1


def _find_center(network: nn.Module) -> float:
    """Where in its stride a position is centered: at the start with odd kernels that are padded by
    half, in the middle with patches (even kernels), at the end with TensorFlow's padding."""
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    striding = [one for one in convolutions if one.stride[0] > 1]
    if any(isinstance(one, SameConv2d) for one in striding):
        return 1.0
    return 0.5 if any(one.kernel_size[0] % 2 == 0 for one in striding) else 0.0


def _to_unit(heat: Tensor) -> Tensor:
    highest = heat.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, heat / highest.clamp_min(1e-12), 0.0)
