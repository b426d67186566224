"""Linear classifiers on features, fitted in closed form: ridge regression and nearest class mean,
chosen by leave-one-out. A handful of photos per class is enough."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64

_STRENGTHS = tuple(10.0**exponent for exponent in range(7))
_SCALES = np.geomspace(0.1, 100, 31)
_LEAST_SPREAD, _LEAST_SHARE, _MOST_LEVERAGE = 1e-6, 1e-9, 0.999

Features = Float[np.ndarray, "photos features"]
Labels = Int64[np.ndarray, " photos"]
Logits = Float64[np.ndarray, "photos classes"]


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """Logits are `features @ weight.T + bias`. `method` says how it was fitted, `accuracy` is that
    by leave-one-out."""

    weight: Float[np.ndarray, "classes features"]
    bias: Float[np.ndarray, " classes"]
    method: str
    accuracy: float

    def logits(self, features: Features) -> Logits:
        return features @ self.weight.T + self.bias


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A head for standardized features, and its logits for every photo, fitted without it."""

    method: str
    weight: Float64[np.ndarray, "features classes"]
    bias: Float64[np.ndarray, " classes"]
    unseen: Logits


def choose_head(features: Features, labels: Labels, classes: int) -> LinearHead:
    """The head that is right most often by leave-one-out; of equals, the more strongly regularized
    one. Every class must have a photo. Its logits are scaled so that their softmax is a fair
    probability for photos that it was not fitted on."""
    mean, spread = features.mean(0), features.std(0) + _LEAST_SPREAD
    scaled = ((features - mean) / spread).astype(np.float64)
    candidates = [_class_means(scaled, labels, classes), *_ridges(scaled, labels, classes)]
    best = max(candidates, key=lambda one: _accuracy(one.unseen, labels))
    scale = _fair_scale(best.unseen, labels)
    weight = (best.weight / spread[:, None]).T * scale
    return LinearHead(
        weight=weight.astype(np.float32),
        bias=(best.bias * scale - weight @ mean).astype(np.float32),
        method=best.method,
        accuracy=_accuracy(best.unseen, labels),
    )


def _class_means(features: Features, labels: Labels, classes: int) -> _Candidate:
    """The nearest class mean: a linear classifier, since all distances share the photo's norm."""
    members = np.eye(classes)[labels]
    counts = members.sum(0)
    sums = members.T @ features
    means = sums / np.maximum(counts, 1)[:, None]
    width = features.shape[1]
    logits = (features @ means.T - (means**2).sum(1) / 2) / width
    own = counts[labels] - 1
    others = (sums[labels] - features) / np.maximum(own, 1)[:, None]
    unseen = ((features * others).sum(1) - (others**2).sum(1) / 2) / width
    logits[np.arange(len(labels)), labels] = np.where(own > 0, unseen, -np.inf)
    return _Candidate(
        method="nearest class mean",
        weight=means.T / width,
        bias=-(means**2).sum(1) / 2 / width,
        unseen=logits,
    )


def _ridges(features: Features, labels: Labels, classes: int) -> Iterator[_Candidate]:
    """Ridge regression onto the classes, the strongest regularization first."""
    count = len(labels)
    targets = np.eye(classes)[labels]
    offset = targets.mean(0)
    centered = targets - offset
    basis, values = _decompose(features)
    along = basis.T @ centered
    for strength in reversed(_STRENGTHS):
        kept = values / (values + strength)
        fitted = basis @ (kept[:, None] * along)
        leverage = np.minimum((basis**2) @ kept + 1 / count, _MOST_LEVERAGE)
        unseen = centered - (centered - fitted) / (1 - leverage)[:, None]
        dual = basis @ (along / (values + strength)[:, None])
        yield _Candidate(
            method=f"ridge regression of strength {strength:g}",
            weight=features.T @ dual,
            bias=offset,
            unseen=unseen + offset,
        )


def _decompose(
    features: Features,
) -> tuple[Float64[np.ndarray, "photos rank"], Float64[np.ndarray, " rank"]]:
    """The left singular vectors of the features and the squares of their singular values, from the
    smaller of both Gram matrices."""
    if features.shape[0] <= features.shape[1]:
        values, vectors = np.linalg.eigh(features @ features.T)
        kept = values > _LEAST_SHARE * values[-1]
        return vectors[:, kept], values[kept]
    values, vectors = np.linalg.eigh(features.T @ features)
    kept = values > _LEAST_SHARE * values[-1]
    return features @ vectors[:, kept] / np.sqrt(values[kept]), values[kept]


def _accuracy(logits: Logits, labels: Labels) -> float:
    return float((logits.argmax(1) == labels).mean())


def _fair_scale(logits: Logits, labels: Labels) -> float:
    finite = torch.from_numpy(np.maximum(logits, np.finfo(np.float32).min / 1e3))
    found = torch.from_numpy(labels)
    losses = [float(torch.nn.functional.cross_entropy(finite * scale, found)) for scale in _SCALES]
    return float(_SCALES[int(np.argmin(losses))])
