"""Scorers compute with NumPy arrays (a comparison) and with tensors on any device (live) in the
same code: their weights and what they read are of one kind. Here is what the two name
differently."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.hallucination.detectors.probes.method import Features

# A NumPy array or a tensor.
Array = Any


def is_numpy(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def exp(array: Array) -> Array:
    return np.exp(array) if is_numpy(array) else array.exp()


def doubled(array: Array) -> Array:
    return array.astype(np.float64) if is_numpy(array) else array.double()


def single(array: Array) -> Array:
    return array.astype(np.float32) if is_numpy(array) else array.float()


def log(array: Array) -> Array:
    return np.log(array) if is_numpy(array) else array.log()


def concatenate(arrays: Sequence[Array]) -> Array:
    if is_numpy(arrays[0]):
        return np.concatenate(arrays)
    import torch  # probes are fitted without it

    return torch.cat([*arrays])


def stack(columns: Sequence[Array]) -> Array:
    if is_numpy(columns[0]):
        return np.stack(columns, axis=1)
    import torch

    return torch.stack([*columns], dim=1)


def where(is_first: Array, first: Array, other: float) -> Array:
    """Unlike a product with `is_first`, this does not spread NaN from values that do not count."""
    if is_numpy(first):
        return np.where(is_first, first, np.asarray(other, first.dtype))
    return first.where(is_first, other)


def to_numpy(array: Array) -> np.ndarray:
    return array if is_numpy(array) else array.detach().cpu().numpy()


def like(example: Array, values: np.ndarray) -> Array:
    """The values as what `example` is, on its device."""
    if is_numpy(example):
        return values
    import torch  # probes are fitted without it

    return torch.from_numpy(values).to(example.device)


def read_ragged(data: Features, field: str, split: str) -> Sequence[np.ndarray]:
    """A ragged field as NumPy arrays; those on a GPU are copied at once."""
    answers = data.read(field, split)
    if not len(answers) or is_numpy(answers[0]):
        return answers
    if len(answers) == 1:
        return [to_numpy(answers[0]).reshape(-1)]
    import torch

    flat = torch.cat([answer.reshape(-1) for answer in answers]).cpu().numpy()
    return np.split(flat, np.cumsum([len(answer) for answer in answers])[:-1])
