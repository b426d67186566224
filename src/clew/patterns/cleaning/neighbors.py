"""The most similar photos by their features, and photos that resemble no other."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64

_AT_ONCE = 1024
# An outlier is farther from its neighbors than the median by this many times the usual spread.
_NEIGHBORS, _SPREADS = 5, 5.0
_MOST_COMPARED = 10_000
_LEAST_DISTANCE, _LEAST_SPREAD = 1e-4, 0.05
_NORMAL = 1.4826  # a normal distribution's standard deviation per median absolute deviation


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """For each photo the most similar others, the nearest first, and their cosine similarity."""

    places: Int64[np.ndarray, "photos neighbors"]
    similarity: Float32[np.ndarray, "photos neighbors"]


def unit_rows(
    features: Float32[np.ndarray, "photos features"],
    mean: Float32[np.ndarray, " features"] | None = None,
) -> Float32[np.ndarray, "photos features"]:
    """Rows of length 1 around the mean of all photos: their products are cosine similarities."""
    centered = features - (features.mean(0) if mean is None else mean)
    return centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-9)


def find_neighbors(
    features: Float32[np.ndarray, "photos features"],
    count: int,
    queries: Float32[np.ndarray, "queries features"] | None = None,
) -> Neighbors:
    """The `count` nearest rows of each row of `features`, or of each of `queries` among them. Rows
    have length 1. Memory stays bounded: the products are computed a block at a time."""
    others = torch.from_numpy(np.ascontiguousarray(features))
    asked = others if queries is None else torch.from_numpy(np.ascontiguousarray(queries))
    count = min(count, len(others) - (queries is None))
    places, similarity = [], []
    for first in range(0, len(asked), _AT_ONCE):
        products = asked[first : first + _AT_ONCE] @ others.T
        if queries is None:
            rows = torch.arange(len(products))
            products[rows, rows + first] = -2.0
        top = products.topk(count, dim=1)
        places.append(top.indices.numpy())
        similarity.append(top.values.numpy())
    return Neighbors(places=np.concatenate(places), similarity=np.concatenate(similarity))


def find_outliers(features: Float32[np.ndarray, "photos features"]) -> list[tuple[int, float]]:
    """Photos that are far from all others, the farthest first, each with a score from 0 to 1.

    In a large set, the others are a sample. Distances are compared as logarithms: in how many
    times the usual distance they are.
    """
    if len(features) <= 2 * _NEIGHBORS:
        return []
    distance = np.log(_mean_distance(features) + _LEAST_DISTANCE)
    middle = np.median(distance)
    spread = max(_NORMAL * float(np.median(np.abs(distance - middle))), _LEAST_SPREAD)
    far = (distance - middle) / spread
    places = np.flatnonzero(far > _SPREADS)
    order = places[np.argsort(-far[places], kind="stable")]
    return [(int(place), float(1 - np.exp(-far[place] / 10))) for place in order]


def _mean_distance(
    features: Float32[np.ndarray, "photos features"],
) -> Float32[np.ndarray, " photos"]:
    """The mean distance of each photo to its nearest neighbors."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(features))[:_MOST_COMPARED])
    rows = torch.from_numpy(np.ascontiguousarray(features))
    others = rows[torch.from_numpy(chosen)]
    found = []
    for first in range(0, len(rows), _AT_ONCE):
        distances = torch.cdist(rows[first : first + _AT_ONCE], others)
        nearest = distances.topk(_NEIGHBORS + 1, largest=False).values
        # A photo in the sample is nearest to itself: that does not count.
        in_sample = np.isin(np.arange(first, first + len(nearest)), chosen)
        start = torch.from_numpy(in_sample.astype(np.int64))[:, None]
        found.append(nearest.gather(1, start + torch.arange(_NEIGHBORS)).mean(1).numpy())
    return np.concatenate(found)
