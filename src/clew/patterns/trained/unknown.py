"""Which photos are unlike every class: the distance of a photo's features to those of the training
photos, calibrated on the validation photos. Kept beside the model."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from clew.engine.model_files import ModelFile, read_model, write_model
from clew.errors import StoreError

UNKNOWN_FILE = "unknown.safetensors"
# With fewer held-out photos, nothing can be said about how far photos of known classes may be.
FEWEST_HELD_OUT = 10
_KIND = "distance to the training features"
# With at least this many, the share of those that are farther away is counted; with fewer, a
# distribution is fitted to their distances.
_ENOUGH_TO_COUNT = 100
# The typicalities whose distances are kept; between them is interpolated.
_LEVELS = np.concatenate([np.geomspace(1e-6, 0.1, 100), np.linspace(0.11, 1.0, 90)])
# Added to each variance within the classes, as a multiple of their mean: with few photos, many
# directions seem to have no variance.
_SMOOTHING = 1.0
_TENSORS = ("center", "whitening", "means", "distances")

Features = Float[np.ndarray, "photos features"]


@dataclass(frozen=True, kw_only=True)
class FeatureSpace:
    """Where the training photos of each class lie. Features are centered and scaled by the inverse
    square root of the covariance within the classes (`whitening`); the distance is the angle to the
    nearest class mean, as its cosine subtracted from 1."""

    center: Float32[np.ndarray, " features"]
    whitening: Float32[np.ndarray, "features features"]
    means: Float32[np.ndarray, "classes features"]

    def without(self, place: int) -> "FeatureSpace":
        """The space without one of its classes."""
        return replace(self, means=np.delete(self.means, place, axis=0))

    def distances(self, features: Features) -> Float32[np.ndarray, " photos"]:
        """From 0 (at a class mean) to 2."""
        found = _to_unit((features.astype(np.float32) - self.center) @ self.whitening)
        return 1 - (found @ self.means.T).max(axis=1, initial=-1)


def fit_space(features: Features, labels: Int64[np.ndarray, " photos"]) -> FeatureSpace:
    """The space of training features; every class in `labels` has a mean, the others have none."""
    values = features.astype(np.float64)
    found, places = np.unique(labels, return_inverse=True)
    counts = np.bincount(places)
    means = np.zeros((len(found), values.shape[1]))
    np.add.at(means, places, values)
    means /= counts[:, None]
    center, within = means.mean(0), values - means[places]
    whitening = _whiten(within.T @ within / len(within))
    return FeatureSpace(
        center=center.astype(np.float32),
        whitening=whitening.astype(np.float32),
        means=_to_unit((means - center) @ whitening).astype(np.float32),
    )


def _whiten(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    values = values.clip(0)
    smoothed = values + _SMOOTHING * max(float(values.mean()), 1e-12)
    return vectors / np.sqrt(smoothed)


def _to_unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True, kw_only=True)
class UnknownModel:
    """Says how typical photos are. `levels` are the distances that held-out photos of the known
    classes exceed with the probabilities in _LEVELS, in descending order."""

    space: FeatureSpace
    levels: Float32[np.ndarray, " levels"]

    def typicality(self, features: Features) -> Float32[np.ndarray, " photos"]:
        """The share of the photos of known classes that are at least as far from the training
        photos: 0.01 is unusual, 0.5 is common. Raises StoreError for features of another
        network."""
        if features.shape[1] != len(self.space.center):
            raise StoreError(
                f"{UNKNOWN_FILE} is for {len(self.space.center):,} features, but the network "
                f"beside it has {features.shape[1]:,}: it belongs to another model. Delete it, or "
                "train again."
            )
        return self.rank(self.space.distances(features))

    def rank(self, distances: Float[np.ndarray, " photos"]) -> Float32[np.ndarray, " photos"]:
        """The typicality of photos at these distances."""
        found = np.interp(distances, self.levels[::-1], _LEVELS[::-1])
        return found.astype(np.float32)

    def write(self, folder: Path) -> None:
        space = self.space
        arrays = (space.center, space.whitening, space.means, self.levels)
        tensors = dict(zip(_TENSORS, map(torch.from_numpy, arrays), strict=True))
        write_model(folder / UNKNOWN_FILE, tensors, {"kind": _KIND})


def calibrate(
    space: FeatureSpace, held_out: Float[np.ndarray, "photos features"]
) -> UnknownModel | None:
    """The distances that held-out photos of the known classes have; None if there are too few."""
    if len(held_out) < FEWEST_HELD_OUT:
        return None
    levels = find_levels(space.distances(held_out).astype(np.float64))
    return UnknownModel(space=space, levels=levels.astype(np.float32))


def find_levels(distances: Float[np.ndarray, " photos"]) -> Float[np.ndarray, " levels"]:
    """The distance that a further photo exceeds with each probability in _LEVELS: counted where
    there are enough photos, and beyond the farthest of them those of a log-normal distribution with
    their mean and variance."""
    from scipy.stats import t as student  # slow to import

    logs = np.log(distances.clip(1e-6))
    count, spread = len(logs), max(float(logs.std(ddof=1)), 1e-3)
    # Student's t: mean and variance are estimates themselves.
    fitted = logs.mean() + spread * np.sqrt(1 + 1 / count) * student.isf(_LEVELS, count - 1)
    levels = np.exp(fitted.clip(-50, 50))
    if count >= _ENOUGH_TO_COUNT:
        # Of n photos, the k-th farthest is exceeded by a further photo with probability k / (n+1).
        known = np.sort(distances)[::-1]
        shares = np.arange(1, count + 1) / (count + 1)
        counted = np.interp(_LEVELS, shares, known)
        levels = np.where(shares[0] > _LEVELS, np.maximum(levels, known[0]), counted)
    return np.maximum.accumulate(levels[::-1])[::-1]


def read_unknown(folder: Path) -> UnknownModel | None:
    """What is kept beside a model; None for a model of an earlier version, or with too few held-out
    photos. Raises StoreError if the file is damaged."""
    path = folder / UNKNOWN_FILE
    if not path.exists():
        return None
    saved = read_model(path)
    _check(saved)
    tensors = saved.read(_TENSORS)
    arrays = [tensors[name].to(torch.float32).numpy() for name in _TENSORS]
    if not all(np.isfinite(values).all() for values in arrays):
        raise _damage(path, "it contains NaN or infinity")
    center, whitening, means, levels = arrays
    if (np.diff(levels) > 0).any():
        raise _damage(path, "its distances are not in order")
    space = FeatureSpace(center=center, whitening=whitening, means=means)
    return UnknownModel(space=space, levels=levels)


def _check(saved: ModelFile) -> None:
    if saved.about.get("kind") != _KIND or {*saved.kinds} != {*_TENSORS}:
        raise _damage(saved.path, "it has other contents")
    shapes = {name: saved.kinds[name].shape for name in _TENSORS}
    width = shapes["center"][0] if len(shapes["center"]) == 1 else 0
    wanted = {"center": (width,), "whitening": (width, width), "distances": (len(_LEVELS),)}
    fits = all(shapes[name] == shape for name, shape in wanted.items())
    if not (fits and len(shapes["means"]) == 2 and shapes["means"][1] == width > 0):
        raise _damage(saved.path, "its tensors have other shapes")
    if any(not kind.dtype.startswith(("F", "BF")) for kind in saved.kinds.values()):
        raise _damage(saved.path, "its tensors have other types")


def _damage(path: Path, why: str) -> StoreError:
    return StoreError(
        f'"{path}" cannot be used ({why}): delete it to use the model without "unknown", or train '
        "again."
    )
