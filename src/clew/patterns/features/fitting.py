"""Training without a GPU, within minutes: feature maps of all photos, a head fitted in closed form,
then the last blocks fine-tuned on the maps for as long as there is time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import psutil
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional as F

from clew.base.cores import count_cores
from clew.base.cpu import fast_convolutions, time_on_core
from clew.base.progress import Reporter, log_event
from clew.base.texts import counted, duration_text, list_some
from clew.patterns.augment import AugmentConfig
from clew.patterns.cache import CachedPhotos
from clew.patterns.features.filling import PhotoSource
from clew.patterns.features.frozen import FrozenLite0, choose_form
from clew.patterns.features.last_blocks import FIRST_BLOCK
from clew.patterns.features.maps import FeatureMaps, map_bytes
from clew.patterns.features.tuning import Loss, PhotoMaps, Tuning
from clew.patterns.features.tuning_file import Row, TuningFile
from clew.patterns.features.views import Views
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.patterns.photos import SPLITS

# Of the time, this share is for the feature maps; a few augmented views of each photo are enough.
_MAPS_SHARE, _MOST_VIEWS, _MEMORY_SHARE = 0.45, 4, 0.25
# Afterwards the whole network looks at the photos once more, which takes this many times as long as
# their features, and the report is drawn. Both are part of the time, up to this share of it.
_EVALUATING, _REPORTING_SECONDS, _MOST_EVALUATING = 2.3, 8.0, 0.5
_TIMED_IMAGES = 4
_FEW = 5


@dataclass(frozen=True, kw_only=True)
class FeaturePlan:
    """How long training on features will take, in seconds, and what it consists of; `minutes` is
    the time that was asked for, of which `spent_seconds` were over before. The evaluation
    afterwards, in `evaluating_seconds`, is part of it."""

    minutes: float
    seconds: float
    reason: str
    threads: int
    spent_seconds: float = 0.0
    evaluating_seconds: float = 0.0

    @property
    def training_seconds(self) -> float:
        """The time for features and fine-tuning."""
        whole = 60 * self.minutes
        left = whole - self.spent_seconds - self.evaluating_seconds
        return max(left, (1 - _MOST_EVALUATING) * whole)


def plan_features(
    photos: int,
    size: int,
    *,
    minutes: float,
    threads: int | None = None,
    spent_seconds: float = 0.0,
) -> FeaturePlan:
    """Plan the training on this many photos of `size` pixels, after measuring how long the network
    takes for one."""
    threads = threads or count_cores()
    base = photos * _time_image(size) / threads
    evaluating = _EVALUATING * base + _REPORTING_SECONDS
    reason = (
        f"there is no GPU: features of {counted(photos, 'photo')} ({duration_text(base)}), then "
        "the last blocks are fine-tuned on them"
    )
    if base > _MAPS_SHARE * 60 * minutes:
        reason += f"; {minutes:g} minutes are short for so many photos, give more `minutes`"
    plan = FeaturePlan(
        minutes=minutes,
        seconds=0.0,
        reason=reason,
        threads=threads,
        spent_seconds=spent_seconds,
        evaluating_seconds=evaluating,
    )
    return replace(plan, seconds=max(plan.training_seconds, base) + evaluating)


@lru_cache(maxsize=8)
def _time_image(size: int) -> float:
    frozen = FrozenLite0(EfficientNetLite0(classes=1), choose_form(torch.device("cpu")))
    images = torch.zeros(_TIMED_IMAGES, size, size, 3, dtype=torch.uint8)
    with fast_convolutions():
        return time_on_core(lambda: frozen.maps_before(images, FIRST_BLOCK)) / _TIMED_IMAGES


@dataclass(frozen=True, kw_only=True)
class FittedOnFeatures:
    """What training did: one row per epoch as in log.csv, the first of the head alone; the best
    epoch, counted from 1, whose weights the network has; and what a user should know."""

    history: list[Row]
    best_epoch: int
    notes: tuple[str, ...]


def fit_on_features(
    network: EfficientNetLite0,
    cached: CachedPhotos,
    labels: Int64[np.ndarray, " photos"],
    splits: Int64[np.ndarray, " photos"],
    folder: Path,
    *,
    plan: FeaturePlan,
    augment: AugmentConfig,
    loss: Loss | None = None,
    seed: int = 0,
    file: TuningFile | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FittedOnFeatures:
    """Trains `network`, which has pretrained weights, on the training photos and leaves it with the
    weights of its best epoch on the validation photos. `splits` are indices into SPLITS;
    views of the photos are trained on too if there is time, unless `augment` changes nothing.

    Feature maps are cached in `folder`, and every epoch of fine-tuning in `file`: the same call
    resumes after a kill. Raises TrainingStoppedError when `should_stop` returns true, StoreError if
    `file` is damaged.
    """
    reporter, started = reporter or log_event, time.monotonic()
    source = PhotoSource(cached=cached, size=cached.size, views=Views(augment))
    maps = FeatureMaps(
        network,
        source,
        folder,
        threads=plan.threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    saved = file.read() if file is not None else None
    if saved is not None:
        photos = _open_photos(maps, source, labels, splits, saved.progress.views, math.inf)
    else:
        most = _MOST_VIEWS if augment != AugmentConfig.nothing() else 0
        until = started + _MAPS_SHARE * plan.training_seconds
        photos = _open_photos(maps, source, labels, splits, most, until)
    tuning = Tuning(
        network,
        photos,
        loss or F.cross_entropy,
        seed,
        reporter,
        should_stop,
        file,
        mixup=augment.mixup,
    )
    with fast_convolutions():
        if saved is not None:
            tuning.resume(saved)
        else:
            left = plan.training_seconds - (time.monotonic() - started)
            tuning.run(max(0.0, left), most_seconds=plan.training_seconds)
    names = sorted({photo.label or "" for photo in cached.photos})
    notes = (*_warn_of_few(labels[splits == SPLITS.index("train")], names), tuning.note)
    done = tuning.progress
    return FittedOnFeatures(history=done.history, best_epoch=done.best_epoch, notes=notes)


def _open_photos(
    maps: FeatureMaps,
    source: PhotoSource,
    labels: np.ndarray,
    splits: np.ndarray,
    most: int,
    until: float,
) -> PhotoMaps:
    """The maps of the photos, and of at most `most` views if they are done in time."""
    digests = np.array(source.cached.digests)
    chosen = {split: splits == SPLITS.index(split) for split in ("train", "validation")}
    names = {split: digests[mask].tolist() for split, mask in chosen.items()}
    keys = [(digest, 0) for split in names for digest in names[split]]
    plain = maps.compute(keys)
    train, count = names["train"], len(names["train"])
    most = min(most, _count_views_in_memory(count, source.size))
    more: list[Tensor] = []
    begun = time.monotonic()
    # Another view, if it will be done in time: those before it say how long it takes.
    while (
        len(more) < most
        and time.monotonic() + (time.monotonic() - begun) / max(1, len(more)) < until
    ):
        view = len(more) + 1
        more.append(maps.compute([(digest, view) for digest in train]))
    return PhotoMaps(
        train=torch.stack([plain[:count], *more]),
        train_labels=torch.from_numpy(labels[chosen["train"]]),
        validation=plain[count:],
        validation_labels=torch.from_numpy(labels[chosen["validation"]]),
    )


def _count_views_in_memory(photos: int, size: int) -> int:
    """How many augmented views there is memory for."""
    room = _MEMORY_SHARE * psutil.virtual_memory().available / max(1, photos * map_bytes(size))
    return max(0, int(room) - 1)


def _warn_of_few(labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """Say which classes have too few training photos."""
    counts = np.bincount(labels, minlength=len(names))
    few = [f'"{name}" ({count})' for name, count in zip(names, counts, strict=True) if count < _FEW]
    if not few:
        return []
    return [
        f"classes with fewer than {_FEW} training photos: {list_some(few)}. Add photos to them."
    ]
