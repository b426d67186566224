"""Training without a GPU: the pretrained network stays as it is, and a linear head is fitted to the
features of the photos."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from clew.cores import count_cores
from clew.patterns.cache import CachedPhotos
from clew.patterns.features.compute import FeatureSettings, compute_features
from clew.patterns.networks.lite0 import FEATURES, EfficientNetLite0
from clew.patterns.networks.pretrained import load_lite0
from clew.patterns.photos import SPLITS
from clew.progress import Reporter

# Images of 224 pixels per second and core; only for the estimate.
_IMAGES_PER_SECOND = 20.0
_USUAL_SIDE = 224
_PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
_STEPS = 60


@dataclass(frozen=True, kw_only=True)
class FeaturePlan:
    """What is done within `minutes`: `reason` says it in one line, `seconds` is the expected
    time."""

    minutes: float
    reason: str
    seconds: float
    views: int = 0


@dataclass(frozen=True, kw_only=True)
class FittedOnFeatures:
    """`history` has one row per head that was tried, `best_epoch` is the number of the one that
    was kept, from 1."""

    history: list[dict[str, Any]]
    best_epoch: int
    head: str
    notes: tuple[str, ...] = ()


def plan_features(photos: int, size: int, *, minutes: float, threads: int) -> FeaturePlan:
    """Plan the training of a set of `photos` photos of `size` pixels."""
    rate = _IMAGES_PER_SECOND * threads * (_USUAL_SIDE / size) ** 2
    reason = "a linear head on features of the pretrained network, since there is no GPU"
    return FeaturePlan(minutes=minutes, reason=reason, seconds=photos / rate)


def fit_on_features(
    network: EfficientNetLite0,
    cached: CachedPhotos,
    labels: Int64[np.ndarray, " photos"],
    splits: Int64[np.ndarray, " photos"],
    folder: Path,
    *,
    plan: FeaturePlan,
    flip: bool,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> FittedOnFeatures:
    """Leaves `network` with the pretrained body and the head that was best on the validation
    photos. Features are kept in `folder`. Raises as `compute_features` does."""
    started = time.monotonic()
    features = compute_features(
        cached,
        folder,
        settings=FeatureSettings(views=plan.views, flip=flip),
        threads=count_cores(),
        reporter=reporter,
        should_stop=should_stop,
    )
    embedding, classes = torch.from_numpy(features.embedding), torch.from_numpy(labels)
    parts = {name: np.flatnonzero(splits == place) for place, name in enumerate(SPLITS)}
    heads, history = [], []
    for number, penalty in enumerate(_PENALTIES, start=1):
        head, loss = _fit_head(
            embedding[parts["train"]], classes[parts["train"]], network._fc.out_features, penalty
        )
        held_out = head(embedding[parts["validation"]]).detach()
        seconds = time.monotonic() - started
        started = time.monotonic()
        heads.append(head)
        history.append(
            {
                "epoch": number,
                "step": number * _STEPS,
                "train_loss": loss,
                **_validate(held_out, classes[parts["validation"]]),
                "samples_per_second": len(embedding) / max(seconds, 1e-9),
                "seconds": seconds,
            }
        )
    best = min(range(len(heads)), key=lambda place: _rank(history[place]))
    _adopt(network, heads[best])
    return FittedOnFeatures(history=history, best_epoch=best + 1, head="logistic")


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    return -row["val_accuracy"], row["val_loss"]


def _fit_head(
    embedding: Float32[Tensor, "photos 1280"],
    labels: Int64[Tensor, " photos"],
    classes: int,
    penalty: float,
) -> tuple[nn.Linear, float]:
    """Logistic regression on standardized features; the scaling becomes part of its weights."""
    mean, std = embedding.mean(0), embedding.std(0).clamp_min(1e-3)
    scaled = (embedding - mean) / std
    weight = torch.zeros(classes, FEATURES, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(scaled @ weight.T + bias, labels) + penalty * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    head = nn.Linear(FEATURES, classes)
    with torch.no_grad():
        head.weight.copy_(weight / std)
        head.bias.copy_(bias - (weight / std) @ mean)
        return head, float(F.cross_entropy(head(embedding), labels))


def _validate(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "val_loss": float(F.cross_entropy(logits, labels)),
        "val_accuracy": float((logits.argmax(1) == labels).float().mean()),
    }


@torch.no_grad()
def _adopt(network: EfficientNetLite0, head: nn.Linear) -> None:
    network.load_state_dict(load_lite0(network._fc.out_features).state_dict())
    network._fc.load_state_dict(head.state_dict())
