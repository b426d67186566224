"""Labels that are probably wrong, and classes that overlap: confident learning on predictions in
which no photo had a say about itself."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int32, Int64, UInt8
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from torch.nn import functional as F

Features = Float32[np.ndarray, "photos features"]
Labels = Int64[np.ndarray, " photos"]
Chances = Float[np.ndarray, "photos classes"]  # probabilities, or scores before they are calibrated
# A label is suspect if another class is more likely and the label's own probability is below this,
# and what labels that are wrong by chance give every class. Measured with 5% and 20% of the labels
# swapped: benchmarks/patterns_clean.py.
_SUSPECT_BELOW = 0.065
# With fewer photos, a class says too little about one of its own.
FEWEST_PHOTOS = 4
# Two classes overlap if this share of the smaller one, and this many photos, look like the other.
_OVERLAP_SHARE, _OVERLAP_PHOTOS = 0.05, 3


class ClassOverlap(NamedTuple):
    """Two classes that look alike. `share` of their photos resemble the other class more than their
    own; `places` are these photos."""

    first: int
    second: int
    share: float
    places: list[int]


def find_suspects(chances: Chances, labels: Labels) -> list[int]:
    """Photos whose label is probably wrong (another class is the most likely one), the least likely
    label first."""
    own = chances[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=chances.shape[1])
    is_suspect = (chances.argmax(1) != labels) & (own < _limit(chances, labels))
    places = np.flatnonzero(is_suspect & (counts[labels] >= FEWEST_PHOTOS))
    return places[np.argsort(own[places], kind="stable")].tolist()


def find_overlaps(chances: Chances, labels: Labels) -> list[ClassOverlap]:
    """Pairs of classes that are often mistaken for each other, the worst first. Photos with a
    suspect label do not count: they are wrong, not alike."""
    own = chances[np.arange(len(labels)), labels]
    guesses = np.where(own < _limit(chances, labels), labels, chances.argmax(1))
    classes = chances.shape[1]
    counts = np.bincount(labels, minlength=classes)
    found = []
    for first, second in itertools.combinations(range(classes), 2):
        mixed = ((labels == first) & (guesses == second)) | (
            (labels == second) & (guesses == first)
        )
        places = np.flatnonzero(mixed)
        share = len(places) / max(1, counts[first] + counts[second])
        if len(places) >= _OVERLAP_PHOTOS and share >= _OVERLAP_SHARE:
            order = places[np.argsort(own[places], kind="stable")]
            found.append(ClassOverlap(first, second, share, order.tolist()))
    return sorted(found, key=lambda overlap: -overlap.share)


def _limit(chances: Chances, labels: Labels) -> float:
    """The probability below which a label is suspect."""
    disagreement = float(np.mean(chances.argmax(1) != labels))
    return _SUSPECT_BELOW + disagreement / max(1, chances.shape[1] - 1)


_STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_LEAST_DEVIATION = 1e-3
# Sharpness of the probabilities: the logarithm of the factor on the scores.
_SHARPNESS = (-1.0, 5.0)
_EPSILON = 1e-9


def join_features(*blocks: Float32[np.ndarray, "photos _"]) -> Features:
    """Standardized features; each block counts as much as any other, however wide it is."""
    return np.concatenate([_standardize(block) for block in blocks], axis=1)


def _standardize(block: Float32[np.ndarray, "photos _"]) -> Float32[np.ndarray, "photos _"]:
    values = (block - block.mean(0)) / (block.std(0) + _LEAST_DEVIATION)
    length = np.sqrt(np.square(values).sum(1).mean())
    return values / max(float(length), _LEAST_DEVIATION)


def predict_left_out(features: Features, labels: Labels, classes: int) -> Chances:
    """The probability of each class for each photo, according to all other photos.

    The strength of the ridge is the one whose predictions agree most often with the labels.
    """
    targets = np.eye(classes)[labels] - 1 / classes
    columns, squares = _find_directions(features)
    mean = targets.mean(0)
    projected, own = columns.T @ (targets - mean), np.square(columns)
    tried = []
    for strength in _STRENGTHS:
        shrunk = squares / (squares + strength)
        fitted = mean + columns @ (shrunk[:, None] * projected)
        # Each photo's score by the ridge regression on the others.
        weight = own @ shrunk + 1 / len(targets)
        tried.append(targets - (targets - fitted) / np.maximum(1 - weight, _EPSILON)[:, None])
    best = max(tried, key=lambda scores: float(np.mean(scores.argmax(1) == labels)))
    return _calibrate(best, labels)


def _find_directions(
    features: Features,
) -> tuple[Float[np.ndarray, "photos directions"], Float[np.ndarray, " directions"]]:
    """The features' singular vectors, one column each, and their squared lengths."""
    centered = features - features.mean(0)
    if len(features) <= features.shape[1]:
        squares, columns = np.linalg.eigh(np.asarray(centered @ centered.T, np.float64))
    else:
        squares, turned = np.linalg.eigh(np.asarray(centered.T @ centered, np.float64))
        lengths = np.sqrt(np.maximum(squares, _EPSILON))
        columns = (centered @ turned.astype(np.float32)) / lengths
    is_used = squares > _EPSILON * max(float(squares[-1]), _EPSILON)
    return columns[:, is_used], squares[is_used]


def _calibrate(scores: Chances, labels: Labels) -> Chances:
    """Probabilities from scores, as sharp as the labels agree with them."""
    own = np.arange(len(labels)), labels

    def loss(sharpness: float) -> float:
        chances = softmax(scores * np.exp(sharpness), axis=1)
        return float(-np.log(np.maximum(chances[own], _EPSILON)).mean())

    found = minimize_scalar(loss, bounds=_SHARPNESS, method="bounded").x
    return softmax(scores * np.exp(found), axis=1)


_AT_ONCE = 1024
# An outlier is farther from its neighbors than the median by this many times the usual spread.
_OUTLIER_NEIGHBORS, _SPREADS = 5, 5.0
_MOST_COMPARED = 10_000
_LEAST_DISTANCE, _LEAST_SPREAD = 1e-4, 0.05
_NORMAL = 1.4826  # a normal distribution's standard deviation per median absolute deviation


def find_outliers(features: Features) -> list[tuple[int, float]]:
    """Photos that are far from all others, the farthest first, each with a score from 0 to 1.

    In a large set, the others are a sample. Distances are compared as logarithms: in how many
    times the usual distance they are.
    """
    if len(features) <= 2 * _OUTLIER_NEIGHBORS:
        return []
    distance = np.log(_mean_distance(features) + _LEAST_DISTANCE)
    middle = np.median(distance)
    spread = max(_NORMAL * float(np.median(np.abs(distance - middle))), _LEAST_SPREAD)
    far = (distance - middle) / spread
    places = np.flatnonzero(far > _SPREADS)
    order = places[np.argsort(-far[places], kind="stable")]
    return [(int(place), float(1 - np.exp(-far[place] / 10))) for place in order]


def _mean_distance(features: Features) -> Float32[np.ndarray, " photos"]:
    """The mean distance of each photo to its nearest neighbors."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(features))[:_MOST_COMPARED])
    rows = torch.from_numpy(np.ascontiguousarray(features))
    others = rows[torch.from_numpy(chosen)]
    found = []
    for first in range(0, len(rows), _AT_ONCE):
        distances = torch.cdist(rows[first : first + _AT_ONCE], others)
        nearest = distances.topk(_OUTLIER_NEIGHBORS + 1, largest=False).values
        # A photo in the sample is nearest to itself: that does not count.
        in_sample = np.isin(np.arange(first, first + len(nearest)), chosen)
        start = torch.from_numpy(in_sample.astype(np.int64))[:, None]
        found.append(nearest.gather(1, start + torch.arange(_OUTLIER_NEIGHBORS)).mean(1).numpy())
    return np.concatenate(found)


_DARK, _DARK_PARTS = 28, 70  # the mean, and the brightest twentieth, of 255
_BRIGHT, _BRIGHT_PARTS = 232, 200
_FLAT = 6.0  # standard deviation of the brightness
_BLUR_SPREADS, _BLUR_FACTOR = 4.0, 12.0
_SMALL, _STRETCHED = 1 / 3, 2.0  # of the usual side, times the usual aspect ratio


class Light(NamedTuple):
    """Per photo: mean, dark and bright parts and spread of the brightness (0 to 255), and the
    sharpness: the share of the contrast that is between neighboring pixels, as a logarithm."""

    mean: Float[np.ndarray, " photos"]
    dark_parts: Float[np.ndarray, " photos"]
    bright_parts: Float[np.ndarray, " photos"]
    spread: Float[np.ndarray, " photos"]
    sharpness: Float[np.ndarray, " photos"]


class QualityIssue(NamedTuple):
    """What is wrong with the photo at `place`; `score` orders issues, the worst first."""

    place: int
    score: float
    reason: str


def measure_light(images: UInt8[np.ndarray, "photos size size 3"]) -> Light:
    gray = torch.from_numpy(images).permute(0, 3, 1, 2).float().mean(1, keepdim=True)
    flat = gray.flatten(1)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    edges = F.conv2d(gray, kernel).flatten(1).var(1)
    dark, bright = torch.quantile(flat, torch.tensor([0.05, 0.95]), dim=1).numpy()
    sharpness = torch.log((edges + 0.1) / (flat.var(1) + 1)).numpy()
    return Light(flat.mean(1).numpy(), dark, bright, flat.std(1).numpy(), sharpness)


def find_issues(light: Light, sizes: Int32[np.ndarray, "photos 2"]) -> list[QualityIssue]:
    """At most one issue per photo, the worst first."""
    found: dict[int, QualityIssue] = {}
    for issue in (*_light_issues(light), *_blur_issues(light), *_size_issues(sizes)):
        found.setdefault(issue.place, issue)
    return sorted(found.values(), key=lambda issue: (-issue.score, issue.place))


def _light_issues(light: Light) -> Iterator[QualityIssue]:
    for place in range(len(light.mean)):
        mean = float(light.mean[place])
        if mean < _DARK and light.bright_parts[place] < _DARK_PARTS:
            reason = f"it is very dark: its mean brightness is {mean / 255:.0%}"
            yield QualityIssue(place, 1 - mean / 255, reason)
        elif mean > _BRIGHT and light.dark_parts[place] > _BRIGHT_PARTS:
            reason = f"it is overexposed: its mean brightness is {mean / 255:.0%}"
            yield QualityIssue(place, mean / 255, reason)
        elif light.spread[place] < _FLAT:
            yield QualityIssue(place, 0.9, "it has hardly any contrast")


def _blur_issues(light: Light) -> Iterator[QualityIssue]:
    """Photos that are much less sharp than the others of the set."""
    if len(light.sharpness) < 4:
        return
    middle = np.median(light.sharpness)
    spread = _NORMAL * np.median(np.abs(light.sharpness - middle))
    limit = middle - max(_BLUR_SPREADS * spread, np.log(_BLUR_FACTOR))
    for place in np.flatnonzero(light.sharpness < limit).tolist():
        times = float(np.exp((middle - light.sharpness[place]) / 2))
        reason = f"it is blurred: {times:.1f} times less sharp than usual"
        yield QualityIssue(place, min(0.89, 1 - 1 / times), reason)


def _size_issues(sizes: Int32[np.ndarray, "photos 2"]) -> Iterator[QualityIssue]:
    if len(sizes) < 4:
        return
    width, height = np.maximum(sizes.astype(np.float64), 1).T
    sides, ratios = np.sqrt(width * height), np.log(width / height)
    side, ratio = np.median(sides), np.median(ratios)
    for place in np.flatnonzero(sides < _SMALL * side).tolist():
        reason = f"it is small: {_shown(sizes[place])}; others have about {side:.0f} pixels a side"
        yield QualityIssue(place, 0.5 * (1 - float(sides[place] / side)), reason)
    for place in np.flatnonzero(np.abs(ratios - ratio) > np.log(_STRETCHED)).tolist():
        reason = f"it has an unusual shape: {_shown(sizes[place])}"
        yield QualityIssue(place, 0.3 * float(np.tanh(abs(ratios[place] - ratio))), reason)


def _shown(size: Int32[np.ndarray, " 2"]) -> str:
    return f"{size[0]:,} x {size[1]:,} pixels"
