"""The photos whose features are nearest to those of others."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Int64

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])
Features = Float32[np.ndarray, "photos features"]
_AT_ONCE = 1024


class Neighbors(NamedTuple):
    """For each photo the most similar others, the nearest first, and their cosine similarity."""

    places: Int64[np.ndarray, "photos neighbors"]
    similarity: Float32[np.ndarray, "photos neighbors"]


def unit_rows(features: Features, mean: Float32[np.ndarray, " features"] | None = None) -> Features:
    """Rows of length 1 around the mean of all photos: their products are cosine similarities."""
    centered = features - (features.mean(0) if mean is None else mean)
    return centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-9)


def find_neighbors(
    features: Features, count: int, queries: Float32[np.ndarray, "queries features"] | None = None
) -> Neighbors:
    """The `count` nearest rows of each row of `features`, or of each of `queries` among them. Rows
    have length 1. Memory stays bounded: the products are computed a block at a time."""
    others = torch.from_numpy(np.ascontiguousarray(features))
    asked = others if queries is None else torch.from_numpy(np.ascontiguousarray(queries))
    count = min(count, len(others) - (queries is None))
    parts = []
    for first in range(0, len(asked), _AT_ONCE):
        products = asked[first : first + _AT_ONCE] @ others.T
        if queries is None:
            rows = torch.arange(len(products))
            products[rows, rows + first] = -2.0
        top = products.topk(count, dim=1)
        parts.append(Neighbors(top.indices.numpy(), top.values.numpy()))
    return join_arrays(parts)


def join_arrays(parts: Sequence[Arrays]) -> Arrays:
    """Named tuples of arrays as one, each array joined along its first axis."""
    return type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))
