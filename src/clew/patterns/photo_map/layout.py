"""Positions in two dimensions by t-SNE (van der Maaten and Hinton, 2008). Its time is bounded: some
photos are laid out, and the others are placed among their nearest neighbors."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

# About 5 seconds on one core, less than one on a GPU.
_MOST_LAID_OUT, _MOST_LAID_OUT_ON_GPU = 1_000, 3_000
_MOST_DIMENSIONS, _MORE_DIMENSIONS, _POWERS = 50, 10, 3
_PERPLEXITY, _HALVINGS = 30.0, 40
_STEPS, _EXAGGERATION = 500, 12.0
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
    first: Sequence[int] = (),
    device: str | torch.device = "cpu",
) -> Float32[np.ndarray, "photos 2"]:
    """Positions from 0 to 1 for each photo, the same ones every time. The photos with the indices
    in `first` are laid out before others."""
    place = torch.device(device)
    reduced = _reduce(_to_unit(features), place)
    if len(reduced) < _FEWEST:
        return _to_square(np.pad(reduced, ((0, 0), (0, 2)))[:, :2])
    most = _MOST_LAID_OUT if place.type == "cpu" else _MOST_LAID_OUT_ON_GPU
    chosen = choose_shown(np.zeros(len(reduced), np.int64), most, first=first)
    placed = _run_tsne(reduced[chosen], place)
    return _to_square(_place_others(reduced, chosen, placed))


def _to_unit(features: np.ndarray) -> np.ndarray:
    values = np.nan_to_num(features.astype(np.float32))
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.maximum(lengths, 1e-12)


def _reduce(values: np.ndarray, device: torch.device) -> np.ndarray:
    """The principal components, which t-SNE takes; less noise, less time. They are found in the
    span of some random mixtures of the photos (Halko et al., 2011)."""
    count = min(_MOST_DIMENSIONS, *values.shape)
    if len(values) < 2 or not np.ptp(values, axis=0).any():
        return np.zeros((len(values), 1), np.float32)
    centered = torch.from_numpy(values - values.mean(0)).to(device)
    mixture = torch.randn(len(values), count + _MORE_DIMENSIONS, generator=_seeded()).to(device)
    for _ in range(_POWERS):
        mixture = torch.linalg.qr(centered.T @ mixture).Q
        mixture = centered @ mixture
    basis = torch.linalg.qr(centered.T @ mixture).Q
    turned, lengths, _ = torch.linalg.svd(centered @ basis, full_matrices=False)
    return (turned * lengths)[:, :count].cpu().numpy()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@torch.inference_mode()
def _run_tsne(values: np.ndarray, device: torch.device) -> np.ndarray:
    """Exact t-SNE by gradient descent with momentum, which takes every pair into account: on a GPU
    it takes a moment, and with few photos on a CPU, too. Its settings are scikit-learn's."""
    spread = float(values[:, 0].std())
    if not spread > 0:
        return np.zeros((len(values), 2), np.float32)
    points = torch.from_numpy(values).to(device)
    start = torch.nn.functional.pad(points, (0, 1))[:, :2] / spread * 1e-4
    # Photos with equal features would stay on top of each other.
    placed = start + 1e-6 * torch.randn(start.shape, generator=_seeded()).to(device)
    likely = _find_affinities(points, min(_PERPLEXITY, (len(points) - 1) / 3))
    rate = max(len(points) / _EXAGGERATION / 4, 50.0)
    moved, gains = torch.zeros_like(placed), torch.ones_like(placed)
    for step in range(_STEPS):
        early = step < _STEPS // 2
        slope = _find_slope(placed, likely * _EXAGGERATION if early else likely)
        is_back = slope.sign() != moved.sign()
        gains = torch.where(is_back, gains + 0.2, gains * 0.8).clamp_min(0.01)
        moved = (0.5 if early else 0.8) * moved - rate * gains * slope
        placed = placed + moved
    return placed.cpu().numpy()


def _find_affinities(points: Tensor, perplexity: float) -> Float[Tensor, "photos photos"]:
    """How likely each photo takes each other one for its neighbor, from either side: normal
    distributions, each as wide as it has `perplexity` neighbors."""
    squares = torch.cdist(points, points).square().fill_diagonal_(torch.inf)
    squares = squares - squares.amin(1, keepdim=True)
    low, high = (torch.full((len(points), 1), end, device=points.device) for end in (-30.0, 30.0))
    for _ in range(_HALVINGS):
        sharpness = (low + high) / 2
        likely = (-squares * sharpness.exp()).softmax(dim=1)
        entropy = torch.special.entr(likely).sum(1, keepdim=True)
        is_wide = entropy > math.log(perplexity)
        low, high = torch.where(is_wide, sharpness, low), torch.where(is_wide, high, sharpness)
    return ((likely + likely.T) / (2 * len(points))).clamp_min(1e-12).fill_diagonal_(0)


def _find_slope(placed: Tensor, likely: Tensor) -> Float[Tensor, "photos 2"]:
    squares = placed.square().sum(1)
    closeness = torch.addmm(squares, placed, placed.T, alpha=-2).add_(squares[:, None] + 1)
    closeness = closeness.clamp_min_(1).reciprocal_().fill_diagonal_(0)
    pull = torch.addcmul(likely, closeness, -1 / closeness.sum()).mul_(closeness)
    return 4 * (pull.sum(1, keepdim=True) * placed - pull @ placed)


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
