"""Positions in two dimensions by t-SNE (van der Maaten and Hinton, 2008). Its time is bounded: some
photos are laid out, and the others are placed among their nearest neighbors."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

# About 5 seconds on one core.
_MOST_LAID_OUT = 2_000
_MOST_DIMENSIONS = 50
_PERPLEXITY = 30.0
_NEIGHBORS = 3
_FEWEST = 5  # fewer photos have no neighborhoods
_AT_ONCE = 1_024
# The share of the photos at each end that may lie outside: one outlier must not shrink the rest.
_TAIL = 0.002


def choose_shown(
    labels: Int64[np.ndarray, " photos"], most: int, *, first: Sequence[int] = ()
) -> Int64[np.ndarray, " shown"]:
    """Indices of at most `most` photos to show, in ascending order: those in `first`, then as many
    of each class as there are of the others, the same ones every time."""
    if len(labels) <= most:
        return np.arange(len(labels))
    random = np.random.default_rng(0)
    shuffled = random.permutation(len(labels))
    ranks = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        ranks[members] = np.arange(len(members))
    ranks[np.asarray(first, np.int64)] = -1
    # Among equal ranks the shuffled order decides, not the order of the classes.
    order = shuffled[np.argsort(ranks[shuffled], kind="stable")]
    return np.sort(order[:most])


def lay_out(
    features: Float[np.ndarray, "photos features"],
    *,
    first: Bool[np.ndarray, " photos"] | None = None,
) -> Float32[np.ndarray, "photos 2"]:
    """Positions from 0 to 1 for each photo, the same ones every time. Photos in `first` are laid
    out before others."""
    reduced = _reduce(_to_unit(features))
    if len(reduced) < _FEWEST:
        return _to_square(np.pad(reduced, ((0, 0), (0, 2)))[:, :2])
    chosen = _choose(len(reduced), first)
    placed = _run_tsne(reduced[chosen])
    return _to_square(_place_others(reduced, chosen, placed))


def _choose(count: int, first: np.ndarray | None) -> Int64[np.ndarray, " chosen"]:
    if count <= _MOST_LAID_OUT:
        return np.arange(count)
    order = np.random.default_rng(0).permutation(count)
    if first is not None:
        order = order[np.argsort(~first[order], kind="stable")]
    return np.sort(order[:_MOST_LAID_OUT])


def _to_unit(features: np.ndarray) -> np.ndarray:
    values = np.nan_to_num(features.astype(np.float32))
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.maximum(lengths, 1e-12)


def _reduce(values: np.ndarray) -> np.ndarray:
    """The principal components, which t-SNE takes; less noise, less time."""
    from sklearn.decomposition import PCA  # slow to import

    count = min(_MOST_DIMENSIONS, *values.shape)
    if len(values) < 2 or not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 1), np.float32)
    return PCA(count, svd_solver="randomized", random_state=0).fit_transform(values)


def _run_tsne(values: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE  # slow to import

    spread = float(values[:, 0].std())
    if not spread > 0:
        return np.zeros((len(values), 2), np.float32)
    start = np.pad(values, ((0, 0), (0, 1)))[:, :2] / spread * 1e-4
    # Photos with equal features would stay on top of each other.
    start = start + np.random.default_rng(0).normal(0, 1e-6, start.shape)
    perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
    return TSNE(
        perplexity=perplexity, init=start.astype(np.float32), max_iter=500, random_state=0
    ).fit_transform(values)


def _place_others(values: np.ndarray, chosen: np.ndarray, placed: np.ndarray) -> np.ndarray:
    """The mean position of the nearest photos that are laid out, the nearest counting most."""
    if len(chosen) == len(values):
        return placed
    positions = np.empty((len(values), 2), np.float32)
    known = values[chosen]
    lengths = (known**2).sum(1)
    for begin in range(0, len(values), _AT_ONCE):
        some = values[begin : begin + _AT_ONCE]
        distances = (some**2).sum(1)[:, None] + lengths - 2 * some @ known.T
        near = np.argpartition(distances, _NEIGHBORS, axis=1)[:, :_NEIGHBORS]
        closeness = 1 / (np.take_along_axis(distances, near, axis=1).clip(0) + 1e-6)
        weights = closeness / closeness.sum(1, keepdims=True)
        positions[begin : begin + _AT_ONCE] = (placed[near] * weights[:, :, None]).sum(1)
    positions[chosen] = placed
    return positions


def _to_square(positions: np.ndarray) -> Float32[np.ndarray, "photos 2"]:
    """Scaled so that they fill the unit square, each direction on its own."""
    if not len(positions):
        return np.zeros((0, 2), np.float32)
    low, high = np.quantile(positions, [_TAIL, 1 - _TAIL], axis=0)
    spread = np.where(high > low, high - low, 1)
    scaled = np.where(high > low, (positions - low) / spread, 0.5)
    return scaled.clip(0, 1).astype(np.float32)
