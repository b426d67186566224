"""Synthetic scores whose AUROC is known."""

import math
from statistics import NormalDist

import numpy as np
from jaxtyping import Float64, Int64


def draw_scores(
    count: int = 200, *, auroc: float = 0.8, share: float = 0.5, seed: int = 0
) -> tuple[Int64[np.ndarray, " samples"], Float64[np.ndarray, " samples"]]:
    """Labels, and binormal scores: N(0, 1) for negatives, N(shift, 1) for positives."""
    random = np.random.default_rng(seed)
    labels = (random.random(count) < share).astype(np.int64)
    shift = math.sqrt(2) * NormalDist().inv_cdf(auroc)
    return labels, random.standard_normal(count) + shift * labels


def draw_tied(
    count: int = 300, seed: int = 0
) -> tuple[Int64[np.ndarray, " samples"], Float64[np.ndarray, " samples"]]:
    """The same with few distinct scores."""
    labels, scores = draw_scores(count, seed=seed)
    return labels, np.round(2 * scores) / 2
