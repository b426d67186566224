"""What the other photos say about each photo: ridge regression on the features, with every photo
left out in turn. The closed form gives all of these predictions for the price of one."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int64
from scipy.optimize import minimize_scalar

_STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_LEAST_SPREAD = 1e-3
# Sharpness of the probabilities: the logarithm of the factor on the scores.
_SHARPNESS = (-1.0, 5.0)
_TINY = 1e-9


def join_features(
    *blocks: Float32[np.ndarray, "photos _"],
) -> Float32[np.ndarray, "photos features"]:
    """Standardized features; each block counts as much as any other, however wide it is."""
    return np.concatenate([_standardize(block) for block in blocks], axis=1)


def _standardize(block: Float32[np.ndarray, "photos _"]) -> Float32[np.ndarray, "photos _"]:
    values = (block - block.mean(0)) / (block.std(0) + _LEAST_SPREAD)
    length = np.sqrt(np.square(values).sum(1).mean())
    return values / max(float(length), _LEAST_SPREAD)


def predict_left_out(
    features: Float32[np.ndarray, "photos features"],
    labels: Int64[np.ndarray, " photos"],
    classes: int,
) -> Float[np.ndarray, "photos classes"]:
    """The probability of each class for each photo, according to all other photos.

    The strength of the ridge is the one whose predictions agree most often with the labels.
    """
    targets = np.eye(classes)[labels] - 1 / classes
    directions = _Directions(features)
    tried = [directions.predict(targets, strength) for strength in _STRENGTHS]
    best = max(tried, key=lambda scores: float(np.mean(scores.argmax(1) == labels)))
    return _calibrate(best, labels)


@dataclass(frozen=True)
class _Directions:
    """The features' singular vectors, one column each, and their squared lengths."""

    columns: Float[np.ndarray, "photos directions"]
    squares: Float[np.ndarray, " directions"]

    def __init__(self, features: Float32[np.ndarray, "photos features"]) -> None:
        centered = features - features.mean(0)
        if len(features) <= features.shape[1]:
            squares, columns = np.linalg.eigh(np.asarray(centered @ centered.T, np.float64))
        else:
            squares, turned = np.linalg.eigh(np.asarray(centered.T @ centered, np.float64))
            lengths = np.sqrt(np.maximum(squares, _TINY))
            columns = (centered @ turned.astype(np.float32)) / lengths
        is_used = squares > _TINY * max(float(squares[-1]), _TINY)
        object.__setattr__(self, "columns", columns[:, is_used])
        object.__setattr__(self, "squares", squares[is_used])

    def predict(
        self, targets: Float[np.ndarray, "photos classes"], strength: float
    ) -> Float[np.ndarray, "photos classes"]:
        """The scores of every photo by the ridge regression on the others."""
        shrunk = self.squares / (self.squares + strength)
        mean = targets.mean(0)
        fitted = mean + self.columns @ (shrunk[:, None] * (self.columns.T @ (targets - mean)))
        own = np.square(self.columns) @ shrunk + 1 / len(targets)
        return targets - (targets - fitted) / np.maximum(1 - own, _TINY)[:, None]


def _calibrate(
    scores: Float[np.ndarray, "photos classes"], labels: Int64[np.ndarray, " photos"]
) -> Float[np.ndarray, "photos classes"]:
    """Probabilities from scores, as sharp as the labels agree with them."""
    own = np.arange(len(labels)), labels

    def loss(sharpness: float) -> float:
        return float(-np.log(np.maximum(_softmax(scores, sharpness)[own], _TINY)).mean())

    return _softmax(scores, minimize_scalar(loss, bounds=_SHARPNESS, method="bounded").x)


def _softmax(
    scores: Float[np.ndarray, "photos classes"], sharpness: float
) -> Float[np.ndarray, "photos classes"]:
    scaled = scores * np.exp(sharpness)
    raised = np.exp(scaled - scaled.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
