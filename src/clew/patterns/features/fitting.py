"""Training without a GPU, within minutes: feature maps of all photos, a head fitted in closed form,
then the last blocks fine-tuned on the maps for as long as there is time."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from clew.base.cores import count_cores
from clew.base.cpu import fast_convolutions, time_on_core
from clew.base.progress import Note, Reporter
from clew.base.texts import counted, duration_text, list_some
from clew.engine import FitResult, LoadSettings, PlanRequest, TrainConfig, fit
from clew.engine.checkpoint import read_checkpoint
from clew.engine.folders import LAST, RESULT
from clew.engine.trainer import record_epoch
from clew.loading.buffers import BufferPool
from clew.loading.loader import Loader
from clew.loading.reader import Rows
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.compute import choose_form, compute_maps, frozen_maps, map_bytes
from clew.patterns.features.store import Key, PhotoSource, Views
from clew.patterns.networks.classifier import PatternClassifier
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.patterns.photos.photo import SPLITS

# Of the time, this share is for the feature maps; a few augmented views of each photo are enough.
_MAPS_SHARE, _MOST_VIEWS, _MEMORY_SHARE = 0.45, 4, 0.25
# Afterwards the whole network looks at the photos once more, which takes this many times as long as
# their features, and the report is drawn. Both are part of the time, up to this share of it.
_EVALUATING, _REPORTING_SECONDS, _MOST_EVALUATING = 2.3, 8.0, 0.5
_TIMED_IMAGES, _TIMED_STEPS = 4, 3
_FEW = 5
# Fine-tuning is what makes a good classifier: it gets the fewest epochs even if the features took
# longer than expected, unless they would take all of the time again.
_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 30
_SCORED_AT_ONCE = 256
_STRENGTHS = tuple(10.0**exponent for exponent in range(7))
_SCALES = np.geomspace(0.1, 100, 31)
_LEAST_SPREAD, _LEAST_SHARE, _MOST_LEVERAGE = 1e-6, 1e-9, 0.999

Features = Float[np.ndarray, "photos features"]
Labels = Int64[np.ndarray, " photos"]
Logits = Float64[np.ndarray, "photos classes"]


@dataclass(frozen=True, kw_only=True)
class FeaturePlan:
    """How long training on features will take, in seconds, and what it consists of; `minutes` is
    the time that was asked for, of which `training_seconds` are for features and fine-tuning."""

    minutes: float
    seconds: float
    reason: str
    threads: int
    training_seconds: float


def plan_features(
    photos: int,
    size: int,
    *,
    minutes: float,
    threads: int | None = None,
    spent_seconds: float = 0.0,
) -> FeaturePlan:
    """Plan the training on this many photos of `size` pixels, after measuring how long the network
    takes for one. `spent_seconds` of the time were over before."""
    threads, whole = threads or count_cores(), 60 * minutes
    base = photos * _time_image(size) / threads
    evaluating = _EVALUATING * base + _REPORTING_SECONDS
    training = max(whole - spent_seconds - evaluating, (1 - _MOST_EVALUATING) * whole)
    reason = (
        f"there is no GPU: features of {counted(photos, 'photo')} ({duration_text(base)}), then "
        "the last blocks are fine-tuned on them"
    )
    if base > _MAPS_SHARE * whole:
        reason += f"; {minutes:g} minutes are short for so many photos, give more `minutes`"
    return FeaturePlan(
        minutes=minutes,
        seconds=max(training, base) + evaluating,
        reason=reason,
        threads=threads,
        training_seconds=training,
    )


@lru_cache(maxsize=8)
def _time_image(size: int) -> float:
    look = frozen_maps(EfficientNetLite0(classes=1), choose_form(torch.device("cpu")))
    images = torch.zeros(_TIMED_IMAGES, size, size, 3, dtype=torch.uint8)
    with fast_convolutions():
        return time_on_core(lambda: look(images)) / _TIMED_IMAGES


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


def fit_on_features(
    model: PatternClassifier,
    cached: CachedPhotos,
    labels: Int64[np.ndarray, " photos"],
    splits: Int64[np.ndarray, " photos"],
    folder: Path,
    *,
    plan: FeaturePlan,
    augment: AugmentConfig,
    config: TrainConfig,
    request: PlanRequest,
    output_dir: Path,
    settings: Mapping[str, Any],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> FitResult:
    """`fit` for a model whose EfficientNet-Lite0 has pretrained weights: its last blocks are
    trained on feature maps of the training photos, which are cached in `folder`, and of augmented
    views of them if there is time, unless `augment` changes nothing. `splits` are indices into
    SPLITS. The first epoch is the head alone; how many more there is time for is measured.

    The same call resumes after a kill; a finished run returns its result at once. Raises
    TrainingStoppedError when `should_stop` returns true.
    """
    started = time.monotonic()
    chosen = [splits == SPLITS.index(split) for split in ("train", "validation")]
    train, validation = (_Labels(torch.from_numpy(labels[mask])) for mask in chosen)
    run = partial(fit, model, train.open, validation.open, request=request, output_dir=output_dir)
    run = partial(run, reporter=reporter, should_stop=should_stop)
    network = model.network
    assert isinstance(network, EfficientNetLite0)
    most, until = 0 if augment == AugmentConfig.nothing() else _MOST_VIEWS, math.inf
    saved = read_checkpoint(output_dir / LAST).about if (output_dir / LAST).exists() else None
    if saved is not None:
        config = replace(config, epochs=saved["config"]["epochs"])
        settings = {**saved["settings"], **settings}
        most = settings.get("views", most)
        if (output_dir / RESULT).exists():
            return run(config=config, settings=settings)
    else:
        until = started + _MAPS_SHARE * plan.training_seconds
    compute = partial(
        compute_maps,
        network,
        PhotoSource(cached=cached, size=cached.size, views=Views(augment)),
        folder,
        threads=plan.threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    digests = [np.array(cached.digests)[mask].tolist() for mask in chosen]
    maps = _compute_maps(compute, *digests, most=most, until=until, size=cached.size)
    model.tune_last_blocks(maps)
    if saved is None:
        left = plan.training_seconds - (time.monotonic() - started)
        with fast_convolutions():
            head, row = _fit_head(model, train.labels)
            batch_size = request.batch_size or len(train)
            epochs = _count_epochs(model, train, batch_size, left, plan.training_seconds)
        views = len(maps[0]) - 1
        config, settings = replace(config, epochs=epochs + 1), {**settings, "views": views}
        names = sorted({photo.label or "" for photo in cached.photos})
        for note in (*_warn_of_few(train.labels, names), _explain(head, epochs, views)):
            reporter(Note(note))
        record_epoch(
            model,
            train.open,
            validation.open,
            row,
            # With an empty head: one that fits the training photos already would leave the blocks
            # next to no gradient.
            begin=network.empty_head,
            config=config,
            request=request,
            output_dir=output_dir,
            settings=settings,
        )
    return run(config=config, settings=settings)


class _Labels:
    """The photos of a split, as the engine reads them: their classes and indices. The model has
    their maps."""

    def __init__(self, labels: Int64[Tensor, " photos"]) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def read_batch(self, indices: Rows, _buffers: BufferPool | None = None) -> dict[str, Tensor]:
        places = torch.from_numpy(np.ascontiguousarray(indices, np.int64))
        return {"index": places, "label": self.labels[places]}

    def open(self, settings: LoadSettings) -> Loader:
        size, seed = settings.batch_size, settings.seed
        return Loader(self, size, shuffle=settings.shuffle, seed=seed, num_workers=0)


def _compute_maps(
    compute: Callable[[Sequence[Key]], Tensor],
    train: list[str],
    validation: list[str],
    *,
    most: int,
    until: float,
    size: int,
) -> tuple[Tensor, Tensor]:
    """The maps of the training photos, `[views, photos, ...]`, with at most `most` augmented views
    of each if they are done in time, and those of the validation photos."""
    count = len(train)
    plain = compute([(digest, 0) for digest in (*train, *validation)])
    room = _MEMORY_SHARE * psutil.virtual_memory().available / max(1, count * map_bytes(size))
    most = min(most, max(0, int(room) - 1))
    more: list[Tensor] = []
    begun = time.monotonic()
    # Another view, if it will be done in time: those before it say how long it takes.
    while (
        len(more) < most
        and time.monotonic() + (time.monotonic() - begun) / max(1, len(more)) < until
    ):
        more.append(compute([(digest, len(more) + 1) for digest in train]))
    return torch.stack([plain[:count], *more]), plain[count:]


def _fit_head(
    model: PatternClassifier, labels: Int64[Tensor, " photos"]
) -> tuple[LinearHead, dict[str, float]]:
    """Fit the head to the photos themselves; returns it with the figures of this first epoch."""
    started = time.monotonic()
    network: Any = model.network.eval()
    assert model.maps is not None
    with torch.inference_mode():
        parts = [model.embed_maps(part) for part in model.maps[0][0].split(_SCORED_AT_ONCE)]
    embedding = torch.cat(parts).numpy()
    head = choose_head(embedding, labels.numpy(), model.classes)
    network.set_head(torch.from_numpy(head.weight), torch.from_numpy(head.bias))
    loss = float(model.loss(torch.from_numpy(head.logits(embedding)), labels))
    seconds = time.monotonic() - started
    rate = len(labels) / max(seconds, 1e-9)
    return head, {"train_loss": loss, "samples_per_second": rate, "seconds": seconds}


def _count_epochs(
    model: PatternClassifier, train: _Labels, batch_size: int, seconds: float, most_seconds: float
) -> int:
    """How many epochs there is time for; 0 if even the fewest take too long."""
    batch = train.read_batch(np.arange(min(batch_size, len(train))))
    model.train()
    steps = [_time(lambda: model.training_step(batch).loss.backward()) for _ in range(_TIMED_STEPS)]
    model.zero_grad()
    each = median(steps) * -(-len(train) // batch_size)
    assert model.maps is not None
    model.eval()
    with torch.inference_mode():
        each += sum(
            _time(partial(model.embed_maps, part)) for part in model.maps[1].split(_SCORED_AT_ONCE)
        )
    if _FEWEST_EPOCHS * each > max(seconds, most_seconds):
        return 0
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, int(seconds / each)))


def _time(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _warn_of_few(labels: Int64[Tensor, " photos"], names: Sequence[str]) -> list[str]:
    """Say which classes have too few training photos."""
    counts = torch.bincount(labels, minlength=len(names)).tolist()
    few = [f'"{name}" ({count})' for name, count in zip(names, counts, strict=True) if count < _FEW]
    if not few:
        return []
    return [
        f"classes with fewer than {_FEW} training photos: {list_some(few)}. Add photos to them."
    ]


def _explain(head: LinearHead, epochs: int, views: int) -> str:
    found = f"the head is {head.method}, {head.accuracy:.1%} accurate by leave-one-out"
    if not epochs:
        return f"{found}; there is no time to fine-tune the last blocks (give more `minutes`)"
    more = f" and {counted(views, 'augmented view')} of each" if views else ""
    repeats = counted(epochs, "epoch")
    return f"{found}; the last blocks are fine-tuned on the photos{more} for {repeats}"


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
