"""Which photos are unlike every class: the distance of a photo's features to those of the training
photos, calibrated on the validation photos. Kept beside the model."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from clew.base.errors import StoreError
from clew.engine.model_files import ModelFile, read_model, write_model

UNKNOWN_FILE = "unknown.safetensors"
# With fewer held-out photos, nothing can be said about how far photos of known classes may be.
FEWEST_HELD_OUT = 10
_KIND = "distance to the training features"
# With at least this many, the share of those that are farther away is counted; with fewer, a
# distribution is fitted to their distances.
_ENOUGH_TO_COUNT = 100
# A few held-out photos cannot tell the share of new photos that is farther away. It is rather taken
# too large: at most the share that is asked for is marked, in so many of all models.
_SURE = 0.9
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
_WHOLE_WEIGHT, _WHOLE_TOLERANCE = 0.5, 2.5
_LEAST_SPREAD = 1e-4
_AT_ONCE = 1_024

Features = Float[np.ndarray, "photos features"]
Labels = Int64[np.ndarray, " photos"]
Distances = Float[Tensor, " photos"]
Levels = Float[Tensor, " levels"]


class Spread(NamedTuple):
    """How training features spread: `whitening` scales them so that they vary equally in all
    directions within the classes, `basis` are the directions that describe nearly all of them."""

    whitening: Float[np.ndarray, "features features"]
    basis: Float[np.ndarray, "features directions"]


def find_spread(features: Features, labels: Labels, device: torch.device | None = None) -> Spread:
    """Found on `device`: decompositions take a GPU a moment, and a CPU seconds."""
    values = to_unit(features.astype(np.float32))
    means, places = _find_means(values, labels)
    within = values - means[places].astype(np.float32)
    variances, directions = _find_directions(within / np.sqrt(np.float32(len(within))), device)
    smoothing = _SMOOTHING * max(float(variances.sum()) / values.shape[1], 1e-9)
    # In all other directions the variance is 0.
    other = 1 / np.sqrt(smoothing)
    whitening = directions * (1 / np.sqrt(variances + smoothing) - other) @ directions.T
    whitening += other * np.eye(values.shape[1], dtype=np.float32)
    _, basis = _find_directions(values, device)
    return Spread(whitening.astype(np.float32), basis[:, :_MOST_DIRECTIONS])


def _find_directions(
    values: Features, device: torch.device | None
) -> tuple[np.ndarray, Float[np.ndarray, "features n"]]:
    """The principal directions, without centering, and the sums of squares along them, from the
    largest on. Few photos span few directions, which takes much less time to find."""
    if len(values) < values.shape[1] // 2:
        _, lengths, directions = np.linalg.svd(values, full_matrices=False)
        return lengths**2, directions.T
    products = torch.from_numpy(values.T @ values).to(device or "cpu")
    squares, found = (one.flip(-1).cpu().numpy() for one in torch.linalg.eigh(products))
    return squares.clip(0), found


def _find_means(values: np.ndarray, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each class that has photos, and which of them each photo belongs to."""
    found, places = np.unique(labels, return_inverse=True)
    means = np.zeros((len(found), values.shape[1]))
    np.add.at(means, places, values)
    return means / np.bincount(places)[:, None], places


def to_unit(values: np.ndarray) -> np.ndarray:
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)


class FeatureSpace(nn.Module):
    """Where the training photos lie. `axes` span the directions in which the classes differ (linear
    discriminant analysis), `points` are the training photos along them. `wholes` are all of their
    features, along `basis`."""

    center: Float[Tensor, " features"]
    axes: Float[Tensor, "features axes"]
    points: Float[Tensor, "training axes"]
    basis: Float[Tensor, "features directions"]
    wholes: Float[Tensor, "training directions"]

    def __init__(self, neighbors: int, **arrays: Tensor) -> None:
        super().__init__()
        self.neighbors = neighbors
        for name, values in arrays.items():
            self.register_buffer(name, values)

    def forward(self, features: Float[Tensor, "photos features"]) -> Float[Tensor, "photos 3"]:
        """Three distances per photo to its nearest training photos: along the axes, the same by
        direction only, and over all features."""
        values = _to_unit(features)
        along = (values - self.center) @ self.axes
        points, turned = _to_unit(self.points), _to_unit(along)
        # What the basis does not describe is far from everything: the length stays 1.
        whole, ones = values @ self.basis, torch.ones_like(values[:, :1])
        near = self._find_nearest(self.points, along, along.square().sum(1, keepdim=True))
        beside = self._find_nearest(points, turned, turned.square().sum(1, keepdim=True))
        return torch.stack([near, beside, self._find_nearest(self.wholes, whole, ones)], dim=1)

    def _find_nearest(self, points: Tensor, photos: Tensor, squared: Tensor) -> Distances:
        """The mean distance to the nearest points; `squared` `[photos, 1]` are the photos' squared
        lengths."""
        squares = squared + points.square().sum(1) - 2 * photos @ points.T
        count = min(self.neighbors, len(points))
        nearest = torch.topk(squares, count, dim=1, largest=False).values
        return nearest.clamp_min(0).sqrt().mean(1)


def _to_unit(values: Tensor) -> Tensor:
    return values / values.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)


@torch.no_grad()
def _run(module: nn.Module, features: Features) -> Float[Tensor, "photos ..."]:
    """What a module gives for features, some at a time."""
    values = torch.from_numpy(features.astype(np.float32))
    return torch.cat([module(some) for some in values.split(_AT_ONCE)])


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
    arrays = {
        "center": center,
        "axes": axes,
        "points": (values - center) @ axes,
        "basis": basis,
        "wholes": values @ basis,
    }
    tensors = {name: torch.from_numpy(_to_float(array)) for name, array in arrays.items()}
    neighbors = int(np.clip(np.bincount(places).min() - 1, 1, _MOST_NEIGHBORS))
    return FeatureSpace(neighbors, **tensors)


def _to_float(values: np.ndarray) -> Float32[np.ndarray, "..."]:
    return np.ascontiguousarray(values, np.float32)


class UnknownModel(nn.Module):
    """Says how typical photos are. `scales` are means and standard deviations over the held-out
    photos of the distances, `levels` the combined distances that they exceed with the probabilities
    in LEVELS, in descending order. It consists of operations that every runtime has: it is exported
    with the network."""

    scales: Float[Tensor, "4 2"]
    levels: Levels
    shares: Levels

    def __init__(self, space: FeatureSpace, scales: Tensor, levels: Tensor) -> None:
        super().__init__()
        self.space = space
        self.register_buffer("scales", scales)
        self.register_buffer("levels", levels)
        self.register_buffer("shares", torch.from_numpy(_to_float(LEVELS)), persistent=False)

    def forward(self, features: Float[Tensor, "photos features"]) -> Float[Tensor, " photos"]:
        """The typicality of photos, as in `typicality`."""
        return rank(_combine(self.space(features), self.scales), self.levels, self.shares)

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
        return _run(self, features).numpy()

    def distances(self, features: Features) -> Float32[np.ndarray, " photos"]:
        """The combined distances, in standard deviations of those of held-out photos."""
        return _combine(_run(self.space, features), self.scales).numpy()

    def write(self, folder: Path) -> None:
        tensors = {**self.space.state_dict(), "scales": self.scales, "levels": self.levels}
        about = {"kind": _KIND, "neighbors": self.space.neighbors}
        write_model(folder / UNKNOWN_FILE, tensors, about)


def calibrate(space: FeatureSpace, held_out: Features) -> UnknownModel | None:
    """The distances that held-out photos of the known classes have; None if there are too few."""
    if len(held_out) < FEWEST_HELD_OUT:
        return None
    measured = _run(space, held_out)
    each = torch.stack([_scale(values) for values in measured.T])
    scales = torch.cat([each, _scale(_add_up(measured, each))[None]])
    levels = find_levels(_combine(measured, scales).double().numpy())
    return UnknownModel(space, scales, torch.from_numpy(_to_float(levels)))


def _scale(values: Float[Tensor, " photos"]) -> Float[Tensor, " 2"]:
    spread = values.std(correction=0).clamp_min(_LEAST_SPREAD)
    return torch.stack([values.mean(), spread])


def _standardize(values: Tensor, scale: Tensor) -> Tensor:
    return (values - scale[0]) / scale[1]


def _combine(measured: Float[Tensor, "photos 3"], scales: Float[Tensor, "4 2"]) -> Distances:
    together = _standardize(_add_up(measured, scales), scales[3])
    return torch.maximum(together, _standardize(measured[:, 2], scales[2]) - _WHOLE_TOLERANCE)


def _add_up(measured: Tensor, scales: Tensor) -> Distances:
    near, turned, whole = (_standardize(measured[:, place], scales[place]) for place in range(3))
    return near + turned + _WHOLE_WEIGHT * whole


def rank(distances: Distances, levels: Levels, shares: Levels) -> Float[Tensor, " photos"]:
    """The typicality of photos at these distances, interpolated between the two nearest levels."""
    levels, shares = levels.flip(0), shares.flip(0)
    after = (distances[:, None] > levels).sum(1).clamp(1, len(levels) - 1)
    low, high = levels[after - 1], levels[after]
    part = ((distances - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return torch.lerp(shares[after - 1], shares[after], part)


def find_levels(distances: Float[np.ndarray, " photos"]) -> Float[np.ndarray, " levels"]:
    """The distance that a further photo exceeds with at most each probability in LEVELS, as sure as
    _SURE: counted where there are enough photos, and beyond the farthest of them that of a normal
    distribution with their mean and variance."""
    from scipy.stats import beta, chi2
    from scipy.stats import t as student  # slow to import

    count, spread = len(distances), max(float(distances.std(ddof=1)), _LEAST_SPREAD)
    # Student's t: mean and variance are estimates themselves, and the variance may be too small.
    spread *= np.sqrt((count - 1) / chi2.ppf(1 - _SURE, count - 1))
    levels = distances.mean() + spread * np.sqrt(1 + 1 / count) * student.isf(LEVELS, count - 1)
    levels = levels.clip(-1e6, 1e6)
    if count >= _ENOUGH_TO_COUNT:
        # The probability that a further photo exceeds the k-th farthest of n has this distribution.
        known, rank = np.sort(distances)[::-1], np.arange(1, count + 1)
        shares = beta.ppf(_SURE, rank, count + 1 - rank)
        counted = np.interp(LEVELS, shares, known)
        levels = np.where(shares[0] > LEVELS, np.maximum(levels, known[0]), counted)
    return np.maximum.accumulate(levels[::-1])[::-1]


def read_unknown(folder: Path) -> UnknownModel | None:
    """What is kept beside a model; None for a model of an earlier version, or with too few held-out
    photos. Raises StoreError if the file is damaged."""
    path = folder / UNKNOWN_FILE
    if not path.exists():
        return None
    saved = read_model(path)
    neighbors = _check(saved)
    tensors = saved.read(saved.kinds)
    tensors = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    if not all(bool(values.isfinite().all()) for values in tensors.values()):
        raise _damage(path, "it contains NaN or infinity")
    scales, levels = tensors.pop("scales"), tensors.pop("levels")
    if (levels.diff() > 0).any() or (scales[:, 1] <= 0).any():
        raise _damage(path, "its distances are not in order")
    return UnknownModel(FeatureSpace(neighbors, **tensors), scales, levels)


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
