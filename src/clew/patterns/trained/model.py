"""A trained network with its classes, its image size and its calibration: its predictions for
photos (read ahead in threads, a batch at a time, in order), and the evidence for them."""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor, nn
from torch.nn import functional
from torch.nn import functional as F

from clew.base.cores import map_in_threads
from clew.base.cpu import leave_slow_kernels
from clew.base.errors import InputError, StoreError
from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as
from clew.base.urls import as_path
from clew.engine import PlanRequest, plan_hardware
from clew.engine.folders import BEST, LAST
from clew.engine.model_files import Wanted, check_about, read_about, read_model
from clew.patterns.networks import build_network, is_network
from clew.patterns.networks.classifier import look_closer, normalize
from clew.patterns.networks.lite0 import SameConv2d, fold_norms
from clew.patterns.photos.decode import hash_picture, read_square
from clew.patterns.photos.find import find_photos
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import Fault, Photo
from clew.patterns.results_file import RESULTS, read_results_file
from clew.patterns.trained.unknown import UnknownModel, read_unknown
from clew.storage.working_copy import working_copy

# The network's name inside the PatternClassifier that was trained.
PREFIX = "network."
_WANTED: Wanted = {
    "settings.network": Annotated[str, Bounds(least=1, most=100)],
    "settings.classes": Annotated[list[Annotated[str, Bounds(least=1)]], Bounds(least=1)],
    "settings.image_size": Annotated[int, Bounds(least=1, most=1024)],
}
_Temperature = Annotated[float, Bounds(least=1e-3, most=1e3)]
# What no folder is called, and so no class.
_NO_CLASS = re.compile(r"[/\0\ud800-\udfff]|\A\.{1,2}\Z")
_ADVICE = 'give a folder that "clew patterns train" wrote'

Images = UInt8[np.ndarray, "batch size size 3"] | UInt8[Tensor, "batch size size 3"]
# Enough that a thread always has a photo to read while the network works.
_BATCHES_AHEAD = 2

# Of Lite0 at 192 pixels, two cores judge 134 photos/s eight at a time, and 99 in batches of 64.
_PIXELS_AT_ONCE_ON_CPU = 8 * 192**2

_Pixels = UInt8[np.ndarray, "size size 3"]
_AT_ONCE = 16


class Outputs(NamedTuple):
    """What the network returns for some photos: logits, and its features, averaged over the
    positions of each map."""

    logits: Float32[np.ndarray, "batch classes"]
    features: Float32[np.ndarray, "batch features"]


class Judged(NamedTuple):
    """Calibrated probabilities, and how typical each photo is for the known classes, as in
    `Prediction`; None for a model that does not know."""

    probabilities: Float32[np.ndarray, "batch classes"]
    typicality: Float32[np.ndarray, " batch"] | None


@dataclass(frozen=True, kw_only=True, repr=False)
class PatternModel:
    """A trained photo classifier. `network` is in eval mode on `device`; its logits divided by
    `temperature` give probabilities that were calibrated on the validation photos. Photos are
    resized to `image_size` x `image_size` pixels. With `looks_closer`, a prediction is the mean of
    those for the photo and for its middle, enlarged. `unknown` says which photos are unlike every
    class; models of earlier versions, and those with very few validation photos, have none."""

    folder: Path
    classes: tuple[str, ...]
    image_size: int
    network: nn.Module
    temperature: float
    device: torch.device
    looks_closer: bool = False
    unknown: UnknownModel | None = None

    def predict(
        self, photos: str | Path | Iterable[str | Path], *, batch_size: int = 64
    ) -> list["Prediction"]:
        """Classify photos.

        Args:
            photos: A photo, a folder of photos, or several of these.
            batch_size: Photos that the network sees at once.

        Returns:
            One prediction per photo, in order; a photo that cannot be read has a `fault`.

        Raises:
            InputError: There is no such photo, or a folder holds none.

        Examples:
            >>> [prediction] = load_classifier("trained").predict("bird.jpg")
            >>> prediction.label, prediction.confidence, prediction.top_k(3)
        """
        roots = [photos] if isinstance(photos, str | Path) else photos
        found = chain.from_iterable(find_photos(Path(root)).photos for root in roots)
        return list(predict_photos(self, found, batch_size=batch_size))

    def __repr__(self) -> str:
        return (
            f"PatternModel({str(self.folder)!r}: {len(self.classes):,} classes, "
            f"{self.image_size} x {self.image_size} pixels, on {self.device})"
        )

    def logits(self, images: Images) -> Float32[np.ndarray, "batch classes"]:
        """Logits `[batch, classes]` of decoded photos, uint8 `[batch, image_size, image_size, 3]`.
        Raises InputError for images of another shape or type, StoreError if the network returns NaN
        or infinity."""
        return self.outputs(images).logits

    @torch.no_grad()
    def outputs(self, images: Images) -> Outputs:
        """Logits and features of decoded photos; arguments and errors are those of `logits`."""
        pixels = torch.as_tensor(images)
        wanted = (self.image_size, self.image_size, 3)
        if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != wanted:
            raise InputError(
                f"the images have shape {tuple(pixels.shape)} and type {pixels.dtype}: pass uint8 "
                f"images of shape [batch, {self.image_size}, {self.image_size}, 3], as returned "
                "by read_square."
            )
        parts = [self._outputs(pixels[some]) for some in self._slices(len(pixels))]
        outputs = Outputs(*map(np.concatenate, zip(*parts, strict=True)))
        if not all(np.isfinite(one).all() for one in outputs):
            raise StoreError(
                f'the model in "{self.folder}" returns NaN or infinity: its weights are damaged. '
                "Train it again, or restore it from a backup."
            )
        return outputs

    def _slices(self, count: int) -> list[slice]:
        """A CPU takes a few photos at a time: the maps of more would not fit into its caches."""
        at_once = max(1, _PIXELS_AT_ONCE_ON_CPU // self.image_size**2)
        step = at_once if self.device.type == "cpu" else max(1, count)
        return [slice(first, first + step) for first in range(0, max(1, count), step)]

    def _outputs(self, images: UInt8[Tensor, "batch size size 3"]) -> Outputs:
        network: Any = self.network
        pixels = normalize(images.to(self.device), network)
        maps = find_maps(network, pixels)
        logits = network.head(maps[-1])
        if self.looks_closer:
            logits = look_closer(network, pixels, logits)
        return Outputs(*(one.float().cpu().numpy() for one in (logits, pool_maps(network, maps))))

    def judge(self, images: Images) -> Judged:
        """Probabilities and typicality of decoded photos; arguments and errors are those of
        `logits`."""
        logits, features = self.outputs(images)
        typicality = None if self.unknown is None else self.unknown.typicality(features)
        return Judged(softmax(logits, self.temperature), typicality)

    def probabilities(self, images: Images) -> Float32[np.ndarray, "batch classes"]:
        """Calibrated probabilities `[batch, classes]` of decoded photos; arguments and errors are
        those of `logits`."""
        return softmax(self.logits(images), self.temperature)


def find_maps(network: Any, images: Float[Tensor, "batch 3 side side"]) -> list[Tensor]:
    """The feature maps of a network, of several stages where it offers them (`stages`); the last is
    what its head takes."""
    stages = getattr(network, "stages", None)
    return [network.features(images)] if stages is None else stages(images)


def pool_maps(network: Any, maps: list[Tensor]) -> Float[Tensor, "batch features"]:
    """The mean of each map over its positions, scaled to length 1. A network that pools the last
    one in its own way says so with `pool`."""
    pool = getattr(network, "pool", None)
    last = _average(maps[-1]) if pool is None else pool(maps[-1])
    return torch.cat([F.normalize(one.float()) for one in (*map(_average, maps[:-1]), last)], dim=1)


def _average(found: Tensor) -> Float[Tensor, "batch channels"]:
    return found.flatten(2).mean(dim=2) if found.ndim > 2 else found


def softmax(
    logits: Float32[np.ndarray, "batch classes"], temperature: float = 1.0
) -> Float32[np.ndarray, "batch classes"]:
    """Softmax with a temperature, in double precision, so that a probability of almost 1 does not
    round to 1."""
    scaled = torch.from_numpy(logits).double() / temperature
    return scaled.softmax(dim=1).float().numpy()


def load_classifier(folder: str | Path, device: str | torch.device | None = None) -> PatternModel:
    """The model that "clew patterns train" left in a folder or at a URL; without `device`, on the
    GPU if there is one.

    Raises StoreError when there is none, when its training was not finished, or when a file of it
    is damaged; InputError for a device that is not available.
    """
    given = as_path(folder)
    with working_copy(given) as here:
        return replace(_load(here, device), folder=given)


def _load(folder: Path, device: str | torch.device | None) -> PatternModel:
    temperature = _read_temperature(folder)
    saved = read_model(folder / BEST)
    settings = _check_settings(saved.path, saved.about)
    name, classes, size = (settings[key] for key in ("network", "classes", "image_size"))
    make = partial(build_network, name, classes=len(classes), image_size=size)
    network = saved.build(make, name=name, prefix=PREFIX)
    fold_norms(network)
    leave_slow_kernels(network)
    place = torch.device(usual_device(None if device is None else str(device)))
    augment = settings.get("augment")
    crop = augment.get("crop") if isinstance(augment, dict) else None
    return PatternModel(
        folder=folder,
        classes=tuple(classes),
        image_size=size,
        network=network.to(place).eval(),
        temperature=temperature,
        device=place,
        looks_closer=isinstance(crop, float) and crop < 1,  # it was trained on random crops
        unknown=read_unknown(folder),
    )


def read_model_settings(folder: Path) -> dict[str, Any]:
    """The description in the weights of a finished run: "network", "classes", "image_size".
    Raises StoreError as `load_classifier` does."""
    _read_temperature(folder)
    return _check_settings(folder / BEST, read_about(folder / BEST))


def usual_device(wanted: str | None = None) -> str:
    """The GPU if there is one; raises InputError if the requested device is not available."""
    return plan_hardware(PlanRequest(device=wanted)).device


def read_results(folder: Path, *, complete: bool = False) -> dict[str, Any]:
    """What results.json of a finished run holds, all of it if `complete`; raises StoreError when
    there is none, or it is damaged."""
    path = folder / RESULTS
    try:
        return read_results_file(path, complete=complete)
    except FileNotFoundError:
        raise StoreError(_explain_missing(folder)) from None
    except (OSError, ValueError) as error:
        raise StoreError(_explain_damage(path, str(error))) from None


def _read_temperature(folder: Path) -> float:
    try:
        return read_as(_Temperature, read_results(folder).get("temperature"), "its temperature")
    except ValueError as error:
        raise StoreError(_explain_damage(folder / RESULTS, str(error))) from None


def _check_settings(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    check_about(path, about, _WANTED, what="an image classifier", advice=_ADVICE)
    network, classes = about["settings"]["network"], about["settings"]["classes"]
    wrong = next(filter(_NO_CLASS.search, classes), None)
    # What no training can have written.
    if not is_network(network):
        reason = f"its network is {shortened(network)}"
    elif len(set(classes)) < len(classes):
        reason = "its classes repeat"
    elif wrong is not None:
        reason = f"it has a class {shortened(wrong)}"
    else:
        return about["settings"]
    raise StoreError(f'"{path}" is not an image classifier ({reason}): {_ADVICE}.')


def _explain_missing(folder: Path) -> str:
    if not folder.is_dir():
        return f'there is no folder "{folder}": give one that "clew patterns train" wrote.'
    if any((folder / name).exists() for name in (BEST, LAST)):
        return (
            f'the training in "{folder}" is not finished: run its "clew patterns train" command '
            "again to resume."
        )
    return f'"{folder}" contains no trained model: give a folder that "clew patterns train" wrote.'


def _explain_damage(path: Path, why: str) -> str:
    return (
        f'"{path}" cannot be read ({why}): delete it and run the "clew patterns train" command '
        "again; it re-creates the file without retraining."
    )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one photo. `probabilities` `[classes]` are those of `classes`, None if the
    photo cannot be read (`fault` says why) or was not to be predicted; `digest` is the same for
    identical images, as in splits.csv. `typicality` is the share of the validation photos that are
    at least as far from the training photos of every class: close to 0 for a photo that shows
    something else. It is None for a model without `unknown`, and where `probabilities` are."""

    photo: Photo
    classes: tuple[str, ...]
    probabilities: Float32[np.ndarray, " classes"] | None = None
    digest: str | None = None
    fault: Fault | None = None
    typicality: float | None = None

    def is_unknown(self, share: float = 0.05) -> bool:
        """Whether the photo is unlike every class: less typical than this share of the validation
        photos."""
        return self.typicality is not None and self.typicality < share

    @property
    def label(self) -> str | None:
        """The most likely class; None if the photo has a fault or was not predicted."""
        return next((label for label, _ in self.top_k(1)), None)

    @property
    def confidence(self) -> float | None:
        """The probability of `label`."""
        return next((probability for _, probability in self.top_k(1)), None)

    def top_k(self, k: int = 3) -> list[tuple[str, float]]:
        """The `k` most likely classes with their probabilities, in order."""
        if self.probabilities is None:
            return []
        places = np.argsort(-self.probabilities, kind="stable")[:k]
        return [(self.classes[place], float(self.probabilities[place])) for place in places]


def predict_photos(
    model: PatternModel,
    photos: Iterable[Photo],
    *,
    batch_size: int = 64,
    workers: int = 2,
    besides: Container[str] = (),
) -> Iterator[Prediction]:
    """One prediction per photo, in order; memory holds a few batches, however many there are. Those
    with a digest in `besides` are only read.

    A photo that cannot be read has a fault, and the others continue.
    """
    read = partial(_read, size=model.image_size)
    squares = map_in_threads(read, photos, workers, ahead=batch_size * _BATCHES_AHEAD)
    try:
        while batch := list(islice(squares, batch_size)):
            yield from _predict(model, batch, besides)
    finally:
        squares.close()


def _predict(
    model: PatternModel, batch: list[tuple[Photo, _Pixels | Fault]], besides: Container[str]
) -> Iterator[Prediction]:
    squares = [None if isinstance(square, Fault) else square for _, square in batch]
    digests = [None if square is None else hash_picture(square.reshape(-1)) for square in squares]
    wanted = [
        square
        for square, digest in zip(squares, digests, strict=True)
        if square is not None and digest not in besides
    ]
    judged = iter(_judge(model, np.stack(wanted)) if wanted else ())
    for (photo, found), digest in zip(batch, digests, strict=True):
        plain = Prediction(photo=photo, classes=model.classes, digest=digest)
        if isinstance(found, Fault):
            yield replace(plain, fault=found)
        elif digest in besides:
            yield plain
        else:
            probabilities, typicality = next(judged)
            yield replace(plain, probabilities=probabilities, typicality=typicality)


def _judge(
    model: PatternModel, images: Images
) -> Iterator[tuple[Float32[np.ndarray, " classes"], float | None]]:
    probabilities, typicality = model.judge(images)
    typical = [None] * len(images) if typicality is None else typicality.tolist()
    return zip(probabilities, typical, strict=True)


def _read(photo: Photo, size: int) -> tuple[Photo, _Pixels | Fault]:
    try:
        return photo, read_square(photo.path, size)
    except PhotoError as error:
        return photo, photo.fault(error.kind, error.reason)


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
