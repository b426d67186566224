"""Which photos are unlike every class: the distance of a photo's features to those of the training
photos, calibrated on the validation photos. Kept beside the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from clew.base.errors import StoreError
from clew.engine.model_files import ModelFile, read_model, write_model

UNKNOWN_FILE = "unknown.safetensors"
# Of the photos of known classes, the share that is marked as unknown.
USUAL_UNKNOWN = 0.05
# With fewer held-out photos, nothing can be said about how far photos of known classes may be.
FEWEST_HELD_OUT = 10
_KIND = "distance to the training features"
# With at least this many, the share of those that are farther away is counted; with fewer, a
# distribution is fitted to their distances.
_ENOUGH_TO_COUNT = 100
# The typicalities whose distances are kept; between them is interpolated.
LEVELS = np.concatenate([np.geomspace(1e-6, 0.1, 100), np.linspace(0.11, 1.0, 90)])
# Added to each variance within the classes, as a multiple of their mean: with few photos, many
# directions seem to have no variance.
_SMOOTHING = 1.0
_MOST_NEIGHBORS = 10
_MOST_DIRECTIONS = 256
# Photos of something similar differ where the classes differ from each other; over all features
# they often vary as known photos do, unless the network was trained for long. So that distance
# counts less, but a large one (in standard deviations) is enough by itself.
WHOLE_WEIGHT, WHOLE_TOLERANCE = 0.5, 2.5
_LEAST_SPREAD = 1e-4
_AT_ONCE = 1_024

Features = Float[np.ndarray, "photos features"]
Labels = Int64[np.ndarray, " photos"]


class Spread(NamedTuple):
    """How training features spread: `whitening` scales them so that they vary equally in all
    directions within the classes, `basis` are the directions that describe nearly all of them."""

    whitening: Float[np.ndarray, "features features"]
    basis: Float[np.ndarray, "features directions"]


def find_spread(features: Features, labels: Labels) -> Spread:
    values = to_unit(features.astype(np.float32))
    means, places = _find_means(values, labels)
    within = values - means[places].astype(np.float32)
    variances, directions = _find_directions(within / np.sqrt(np.float32(len(within))))
    smoothing = _SMOOTHING * max(float(variances.sum()) / values.shape[1], 1e-9)
    # In all other directions the variance is 0.
    other = 1 / np.sqrt(smoothing)
    whitening = directions * (1 / np.sqrt(variances + smoothing) - other) @ directions.T
    whitening += other * np.eye(values.shape[1], dtype=np.float32)
    _, basis = _find_directions(values)
    return Spread(whitening.astype(np.float32), basis[:, :_MOST_DIRECTIONS])


def _find_directions(values: Features) -> tuple[np.ndarray, Float[np.ndarray, "features n"]]:
    """The principal directions, without centering, and the sums of squares along them, from the
    largest on. Few photos span few directions, which takes much less time to find."""
    if len(values) < values.shape[1] // 2:
        _, lengths, directions = np.linalg.svd(values, full_matrices=False)
        return lengths**2, directions.T
    squares, directions = np.linalg.eigh(values.T @ values)
    return squares[::-1].clip(0), directions[:, ::-1]


def _find_means(values: np.ndarray, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each class that has photos, and which of them each photo belongs to."""
    found, places = np.unique(labels, return_inverse=True)
    means = np.zeros((len(found), values.shape[1]))
    np.add.at(means, places, values)
    return means / np.bincount(places)[:, None], places


def to_unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True, kw_only=True)
class FeatureSpace:
    """Where the training photos lie. `axes` span the directions in which the classes differ (linear
    discriminant analysis), `points` are the training photos along them. `wholes` are all of their
    features, along `basis`."""

    center: Float32[np.ndarray, " features"]
    axes: Float32[np.ndarray, "features axes"]
    points: Float32[np.ndarray, "training axes"]
    basis: Float32[np.ndarray, "features directions"]
    wholes: Float32[np.ndarray, "training directions"]
    neighbors: int

    def measure(self, features: Features) -> Float32[np.ndarray, "photos 3"]:
        """Three distances per photo to its nearest training photos: along the axes, the same by
        direction only, and over all features."""
        values = to_unit(features.astype(np.float32))
        along = (values - self.center) @ self.axes
        points, turned = to_unit(self.points), to_unit(along)
        # What the basis does not describe is far from everything: the length stays 1.
        whole = values @ self.basis, np.ones(len(values), np.float32)
        return np.stack(
            [
                _find_nearest(self.points, along, (along**2).sum(1), self.neighbors),
                _find_nearest(points, turned, (turned**2).sum(1), self.neighbors),
                _find_nearest(self.wholes, *whole, self.neighbors),
            ],
            axis=1,
        )


def _find_nearest(
    points: Float32[np.ndarray, "training axes"],
    photos: Float32[np.ndarray, "photos axes"],
    squared: Float32[np.ndarray, " photos"],
    count: int,
) -> Float32[np.ndarray, " photos"]:
    """The mean distance to the `count` nearest points; `squared` are the squared lengths of the
    photos."""
    lengths, count = (points**2).sum(1), min(count, len(points))
    found = np.empty(len(photos), np.float32)
    for begin in range(0, len(photos), _AT_ONCE):
        some = photos[begin : begin + _AT_ONCE]
        own = squared[begin : begin + _AT_ONCE, None]
        squares = own + lengths - 2 * some @ points.T
        nearest = np.partition(squares, count - 1, axis=1)[:, :count]
        found[begin : begin + _AT_ONCE] = np.sqrt(nearest.clip(0)).mean(1)
    return found


def fit_space(features: Features, labels: Labels, spread: Spread | None = None) -> FeatureSpace:
    """The space of the features of training photos. `spread` may be that of more classes, to hold
    some out without computing it again."""
    whitening, basis = spread or find_spread(features, labels)
    values = to_unit(features.astype(np.float32))
    means, places = _find_means(values, labels)
    center = means.mean(0)
    # The means sum to 0 after centering: one direction fewer than classes.
    spanned, _ = np.linalg.qr(((means - center) @ whitening)[:-1].T)
    axes = whitening @ spanned
    return FeatureSpace(
        center=center.astype(np.float32),
        axes=axes.astype(np.float32),
        points=((values - center) @ axes).astype(np.float32),
        basis=np.ascontiguousarray(basis, np.float32),
        wholes=(values @ basis).astype(np.float32),
        neighbors=int(np.clip(np.bincount(places).min() - 1, 1, _MOST_NEIGHBORS)),
    )


@dataclass(frozen=True, kw_only=True)
class UnknownModel:
    """Says how typical photos are. `scales` are means and standard deviations over the held-out
    photos of the distances, `levels` the combined distances that they exceed with the probabilities
    in LEVELS, in descending order."""

    space: FeatureSpace
    scales: Float32[np.ndarray, "4 2"]
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
        return rank(self.distances(features), self.levels)

    def distances(self, features: Features) -> Float32[np.ndarray, " photos"]:
        """The combined distances, in standard deviations of those of held-out photos."""
        return _combine(self.space.measure(features), self.scales)

    def write(self, folder: Path) -> None:
        space = self.space
        arrays = {
            "center": space.center,
            "axes": space.axes,
            "points": space.points,
            "basis": space.basis,
            "wholes": space.wholes,
            "scales": self.scales,
            "levels": self.levels,
        }
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        write_model(folder / UNKNOWN_FILE, tensors, {"kind": _KIND, "neighbors": space.neighbors})


def calibrate(space: FeatureSpace, held_out: Features) -> UnknownModel | None:
    """The distances that held-out photos of the known classes have; None if there are too few."""
    if len(held_out) < FEWEST_HELD_OUT:
        return None
    measured = space.measure(held_out)
    each = np.array([_scale(values) for values in measured.T])
    scales = np.stack([*each, _scale(_add_up(measured, each))]).astype(np.float32)
    levels = find_levels(_combine(measured, scales).astype(np.float64))
    return UnknownModel(space=space, scales=scales, levels=levels.astype(np.float32))


def _scale(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), max(float(values.std()), _LEAST_SPREAD)


def _standardize(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (values - scale[0]) / scale[1]


def _combine(
    measured: Float32[np.ndarray, "photos 3"], scales: Float32[np.ndarray, "4 2"]
) -> Float32[np.ndarray, " photos"]:
    together = _standardize(_add_up(measured, scales), scales[3])
    return np.maximum(together, _standardize(measured[:, 2], scales[2]) - WHOLE_TOLERANCE)


def _add_up(measured: np.ndarray, scales: np.ndarray) -> np.ndarray:
    near, turned, whole = (
        _standardize(values, scale) for values, scale in zip(measured.T, scales, strict=False)
    )
    return near + turned + WHOLE_WEIGHT * whole


def find_levels(distances: Float[np.ndarray, " photos"]) -> Float[np.ndarray, " levels"]:
    """The distance that a further photo exceeds with each probability in LEVELS: counted where
    there are enough photos, and beyond the farthest of them that of a normal distribution with
    their mean and variance."""
    from scipy.stats import t as student  # slow to import

    count, spread = len(distances), max(float(distances.std(ddof=1)), _LEAST_SPREAD)
    # Student's t: mean and variance are estimates themselves.
    levels = distances.mean() + spread * np.sqrt(1 + 1 / count) * student.isf(LEVELS, count - 1)
    levels = levels.clip(-1e6, 1e6)
    if count >= _ENOUGH_TO_COUNT:
        # Of n photos, the k-th farthest is exceeded by a further photo with probability k / (n+1).
        known, shares = np.sort(distances)[::-1], np.arange(1, count + 1) / (count + 1)
        counted = np.interp(LEVELS, shares, known)
        levels = np.where(shares[0] > LEVELS, np.maximum(levels, known[0]), counted)
    return np.maximum.accumulate(levels[::-1])[::-1]


def rank(
    distances: Float[np.ndarray, " photos"], levels: Float[np.ndarray, " levels"]
) -> Float32[np.ndarray, " photos"]:
    """The typicality of photos at these distances."""
    return np.interp(distances, levels[::-1], LEVELS[::-1]).astype(np.float32)


def read_unknown(folder: Path) -> UnknownModel | None:
    """What is kept beside a model; None for a model of an earlier version, or with too few held-out
    photos. Raises StoreError if the file is damaged."""
    path = folder / UNKNOWN_FILE
    if not path.exists():
        return None
    saved = read_model(path)
    neighbors = _check(saved)
    tensors = saved.read(saved.kinds)
    arrays = {name: tensor.to(torch.float32).numpy() for name, tensor in tensors.items()}
    if not all(np.isfinite(values).all() for values in arrays.values()):
        raise _damage(path, "it contains NaN or infinity")
    scales, levels = arrays.pop("scales"), arrays.pop("levels")
    if (np.diff(levels) > 0).any() or (scales[:, 1] <= 0).any():
        raise _damage(path, "its distances are not in order")
    space = FeatureSpace(neighbors=neighbors, **arrays)
    return UnknownModel(space=space, scales=scales, levels=levels)


def _check(saved: ModelFile) -> int:
    """The number of neighbors; raises StoreError for tensors that do not fit each other."""
    neighbors: Any = saved.about.get("neighbors")
    if saved.about.get("kind") != _KIND or neighbors not in range(1, _MOST_NEIGHBORS + 1):
        raise _damage(saved.path, "it has other contents")
    shapes = {name: kind.shape for name, kind in saved.kinds.items()}
    (width, axes), (count, directions) = (
        (*shapes.get(name, ()), 0, 0)[:2] for name in ("axes", "wholes")
    )
    wanted = {
        "center": (width,),
        "axes": (width, axes),
        "points": (count, axes),
        "basis": (width, directions),
        "wholes": (count, directions),
        "scales": (4, 2),
        "levels": (len(LEVELS),),
    }
    if shapes != wanted or min(width, axes, count, directions) < 1:
        raise _damage(saved.path, "its tensors have other shapes")
    if any(not kind.dtype.startswith(("F", "BF")) for kind in saved.kinds.values()):
        raise _damage(saved.path, "its tensors have other types")
    return int(neighbors)


def _damage(path: Path, why: str) -> StoreError:
    return StoreError(
        f'"{path}" cannot be used ({why}): delete it to use the model without "unknown", or train '
        "again."
    )
