"""A trained network with what its answers mean: its classes, its image size, how sure it is."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor, nn

from clew.engine import PlanRequest, plan_hardware
from clew.engine.folders import BEST
from clew.engine.model_files import Wanted, check_about, read_about, read_model
from clew.errors import InputError, StoreError
from clew.patterns.classifier import normalise
from clew.patterns.networks import build_network

RESULTS = "results.json"
# The network's place inside the PatternClassifier that was trained.
PREFIX = "network."
_WANTED: Wanted = {"settings.network": str, "settings.classes": list, "settings.image_size": int}

Images = UInt8[np.ndarray, "batch size size 3"] | UInt8[Tensor, "batch size size 3"]


@dataclass(frozen=True, kw_only=True)
class PatternModel:
    """`network` is in eval mode on `device`; its logits over `temperature` make probabilities
    that mean what they say, as they did on the photos of the validation split."""

    folder: Path
    classes: tuple[str, ...]
    image_size: int
    network: nn.Module
    temperature: float
    device: torch.device

    @torch.no_grad()
    def logits(self, images: Images) -> Float32[np.ndarray, "batch classes"]:
        """Of photos as they are decoded: squares of `image_size`. Raises InputError for others."""
        pixels = torch.as_tensor(images)
        self._check(pixels)
        return self.network(normalise(pixels.to(self.device))).float().cpu().numpy()

    def probabilities(self, images: Images) -> Float32[np.ndarray, "batch classes"]:
        """As `logits`; each row sums to 1."""
        return softmax(self.logits(images), self.temperature)

    def _check(self, pixels: Tensor) -> None:
        wanted = (self.image_size, self.image_size, 3)
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != wanted:
            raise InputError(
                f"the images are {tuple(pixels.shape)} of {pixels.dtype}: give uint8 of "
                f"[batch, {self.image_size}, {self.image_size}, 3], as read_square makes them."
            )


def softmax(
    logits: Float32[np.ndarray, "batch classes"], temperature: float = 1.0
) -> Float32[np.ndarray, "batch classes"]:
    """In double precision, so that what is nearly sure is not taken for sure."""
    scaled = torch.from_numpy(logits).double() / temperature
    return scaled.softmax(dim=1).float().numpy()


def load_model(folder: str | Path, device: str | torch.device | None = None) -> PatternModel:
    """The model that "clew patterns train" left in a folder; without `device`, on the GPU if there
    is one.

    Raises StoreError when there is none, when its training was not finished, or when a file of it
    is damaged; InputError for a device that is not here.
    """
    folder = Path(folder)
    temperature = _read_temperature(folder)
    saved = read_model(folder / BEST)
    settings = _check_settings(saved.path, saved.about)
    network = build_network(
        settings["network"], classes=len(settings["classes"]), image_size=settings["image_size"]
    )
    saved.load_into(network, name=settings["network"], prefix=PREFIX)
    place = torch.device(usual_device(None if device is None else str(device)))
    return PatternModel(
        folder=folder,
        classes=tuple(settings["classes"]),
        image_size=settings["image_size"],
        network=network.to(place).eval(),
        temperature=temperature,
        device=place,
    )


def read_model_settings(folder: Path) -> dict[str, Any]:
    """What a finished training's weights say of themselves: "network", "classes", "image_size".
    Raises StoreError as `load_model` does."""
    _read_temperature(folder)
    return _check_settings(folder / BEST, read_about(folder / BEST))


def usual_device(wanted: str | None = None) -> str:
    """The GPU if there is one; raises InputError for a wanted device that is not here."""
    return plan_hardware(PlanRequest(device=wanted)).device


def read_results(folder: Path) -> dict[str, Any]:
    """What results.json of a finished training holds; raises StoreError when there is none."""
    path = folder / RESULTS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(_explain_missing(folder)) from None
    except (OSError, ValueError) as error:
        raise StoreError(_explain_damage(path, str(error))) from None
    if not isinstance(content, dict):
        raise StoreError(_explain_damage(path, "it holds no settings"))
    return content


def _read_temperature(folder: Path) -> float:
    temperature = read_results(folder).get("temperature")
    if not isinstance(temperature, float | int) or not 0 < temperature < math.inf:
        raise StoreError(_explain_damage(folder / RESULTS, f"its temperature is {temperature!r}"))
    return float(temperature)


def _check_settings(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    check_about(
        path,
        about,
        _WANTED,
        what="model of patterns",
        advice='give a folder that "clew patterns train" wrote',
    )
    return about["settings"]


def _explain_missing(folder: Path) -> str:
    if not folder.is_dir():
        return f'there is no folder "{folder}": give one that "clew patterns train" wrote.'
    if any(folder.glob("*.safetensors")):
        return (
            f'the training in "{folder}" was not finished: give its "clew patterns train" command '
            f"again, it goes on."
        )
    return f'"{folder}" holds no trained model: give a folder that "clew patterns train" wrote.'


def _explain_damage(path: Path, why: str) -> str:
    return (
        f'"{path}" cannot be read ({why}): delete it, and give the "clew patterns train" command '
        f"again; it is written anew without training again."
    )
