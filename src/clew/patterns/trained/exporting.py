"""What every exported form of a trained model has: pixels in, calibrated probabilities out, its
description, and the check that its predictions are the model's."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from clew.base.errors import ClewError, InputError
from clew.patterns.classifier import Normalize, look_closer
from clew.patterns.networks import input_scaling
from clew.patterns.photos.decode import PhotoError, read_square
from clew.patterns.trained.model import PatternModel, find_maps, pool_maps, read_results
from clew.patterns.trained.tables import read_splits
from clew.patterns.trained.typicality import Typicality
from clew.patterns.trained.unknown import USUAL_UNKNOWN
from clew.storage.working_copy import working_copy
from clew.version import __version__

INPUT, OUTPUT, TYPICALITY = "image", "probabilities", "typicality"
TOLERANCE = 1e-4
# Of typicality: between two kept distances, a small difference may be a large share.
_LOOSE = 0.05
CHECKED = 32
_BATCHES = (1, 7)
_TRIES = 4  # photos to try for each wanted one, as some may be missing

# Pixels to the outputs: probabilities, and typicality if the model has it.
Run = Callable[[UInt8[np.ndarray, "batch size size 3"]], Sequence[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """An exported model. `difference` is the largest difference between its probabilities and the
    classifier's over `checked` images; `with_photos` says whether these were photos of the training
    set. With `has_typicality` it recognizes unknown photos. `page` is the page for browsers, if one
    was asked for."""

    path: Path
    classes: tuple[str, ...]
    image_size: int
    bytes: int
    difference: float
    checked: int
    with_photos: bool
    has_typicality: bool = False
    page: Path | None = None


class Photographed(nn.Module):
    """The network with everything between a photo's pixels and its probabilities; for a model that
    knows `unknown` photos, also how typical the photo is."""

    def __init__(self, model: PatternModel) -> None:
        super().__init__()
        self.normalize, self.network = Normalize(input_scaling(model.network)), model.network
        self.temperature, self.looks_closer = model.temperature, model.looks_closer
        self.typicality = None if model.unknown is None else Typicality(model.unknown)

    def forward(
        self, image: UInt8[Tensor, "batch size size 3"]
    ) -> Float[Tensor, "batch classes"] | tuple[Tensor, Tensor]:
        network: Any = self.network
        pixels = self.normalize(image.to(torch.float32) / 255)
        if self.typicality is None:
            return self._judge(pixels, network(pixels))
        maps = find_maps(network, pixels)
        probabilities = self._judge(pixels, network.head(maps[-1]))
        return probabilities, self.typicality(pool_maps(network, maps))

    def _judge(self, pixels: Tensor, logits: Tensor) -> Float[Tensor, "batch classes"]:
        if self.looks_closer:
            logits = look_closer(self.network, pixels, logits)
        return torch.softmax(logits / self.temperature, dim=1)


def on_cpu(model: PatternModel) -> PatternModel:
    """A copy in full precision and plain memory format, so that the file is the same with and
    without a GPU."""
    network = copy.deepcopy(model.network).float().cpu().eval()
    network = network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return replace(model, network=network, device=torch.device("cpu"))


def prepare_file(path: Path) -> None:
    """Make its folder. Raises InputError if a file cannot be written there."""
    if path.is_dir():
        raise InputError(f'"{path}" is a folder: give the name of a file, such as model.onnx.')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{path.parent}" cannot be created ({error.strerror}): choose another path.'
        ) from None


def describe_model(model: PatternModel) -> dict[str, str]:
    """What a user of the file must know, and what is inside it already: each entry is a text, lists
    and objects as JSON."""
    size, scaling = model.image_size, input_scaling(model.network)
    given = {
        "name": INPUT,
        "type": "uint8",
        "shape": ["batch", size, size, 3],
        "colors": "RGB",
        "resize": f"the whole photo, upright, resized to {size} x {size} pixels (Lanczos)",
    }
    inside = {"formula": "(pixel / 255 - mean) / std", "mean": scaling.mean, "std": scaling.std}
    unlike = {"output": TYPICALITY, "rule": f"below {USUAL_UNKNOWN}: none of the classes"}
    calibration = {"method": "temperature scaling", "temperature": model.temperature}
    return {
        "classes": _json(model.classes),
        "image_size": str(size),
        "input": _json(given),
        "scaling": _json({"inside": True, **inside}),
        "calibration": _json({"inside": True, **calibration}),
        **({} if model.unknown is None else {"unknown": _json(unlike)}),
        "temperature": repr(model.temperature),
        "clew": __version__,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def output_names(model: PatternModel) -> list[str]:
    return [OUTPUT] if model.unknown is None else [OUTPUT, TYPICALITY]


def compare(model: PatternModel, images: np.ndarray, run: Run, runtime: str) -> float:
    """The largest difference between the probabilities that `run` gives, in batches of one and of
    several, and the model's. Raises ClewError, which names the `runtime`, if it is too large."""
    judged = model.judge(images)
    found = [_in_batches(run, images, size) for size in _BATCHES]
    difference = max(float(np.abs(one[0] - judged.probabilities).max()) for one in found)
    if judged.typicality is not None:
        farthest = max(float(np.abs(one[1] - judged.typicality).max()) for one in found)
        _refuse_difference(runtime, "typicalities", farthest, _LOOSE)
    _refuse_difference(runtime, "probabilities", difference, TOLERANCE)
    return difference


def _refuse_difference(runtime: str, what: str, difference: float, most: float) -> None:
    if not difference < most:  # also true for NaN
        raise ClewError(
            f"{runtime} and the classifier give different predictions ({what} differ by up to "
            f"{difference:.2g}, but at most {most:g} is allowed), so no file was written: please "
            f"report the network and the versions of torch and {runtime}."
        )


def _in_batches(run: Run, images: np.ndarray, batch: int) -> list[np.ndarray]:
    parts = [run(images[at : at + batch]) for at in range(0, len(images), batch)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def first_line(error: BaseException) -> str:
    """The first line of the original error: the exporter wraps it in advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def sample_images(
    model: PatternModel, count: int
) -> tuple[UInt8[np.ndarray, "count size size 3"], bool]:
    """Up to `count` photos from all over the training folder, and True; random images, and False,
    if none can be found."""
    photos = _read_photos(_find_photos(model.folder, count * _TRIES), model.image_size, count)
    if photos:
        return np.stack(photos), True
    shape = (count, model.image_size, model.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), False


def _find_photos(folder: Path, count: int) -> list[Path]:
    try:
        with working_copy(folder) as here:
            root = Path(read_results(here)["data"]["folder"])
            names = [row.name for row in read_splits(here)]
    except (ClewError, KeyError, TypeError):
        return []
    step = max(1, len(names) // count)
    return [root / name for name in names[::step]]


def _read_photos(paths: list[Path], size: int, count: int) -> list[np.ndarray]:
    photos: list[np.ndarray] = []
    for path in paths:
        if len(photos) == count:
            break
        try:
            photos.append(read_square(path, size))
        except PhotoError:
            continue
    return photos
