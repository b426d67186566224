"""Training without a GPU, within minutes: feature maps of all photos, a head fitted in closed form,
then the last blocks fine-tuned on the maps for as long as there is time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from clew.cores import count_cores
from clew.cpu import fast_convolutions
from clew.errors import TrainingStoppedError
from clew.patterns.cache import CachedPhotos
from clew.patterns.features.filling import PhotoSource
from clew.patterns.features.frozen import FrozenLite0, choose_form
from clew.patterns.features.heads import LinearHead, choose_head
from clew.patterns.features.last_blocks import FIRST_BLOCK, LastBlocks
from clew.patterns.features.maps import FeatureMaps, map_bytes
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.patterns.photos import SPLITS
from clew.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.wording import counted, duration_text, list_some

# Of the time, this share is for the feature maps; a few augmented views of each photo are enough.
_MAPS_SHARE, _MOST_VIEWS, _MEMORY_SHARE = 0.45, 4, 0.25
# Of the rest, this share is for the steps: the test photos are evaluated afterwards.
_STEPS_SHARE, _MOST_EPOCHS = 0.9, 30
# Fine-tuning is what makes a good classifier: it gets this many epochs even if the features took
# longer than expected, unless they would take all of the time again.
_FEWEST_EPOCHS = 3
_BATCH, _SCORED_AT_ONCE = 32, 256
_PEAK, _WARM, _DECAY = 1e-3, 0.1, 1e-4
_MOST_GRADIENT = 1.0
_TIMED_IMAGES, _TIMED_STEPS = 4, 3
_FEW = 5

Row = dict[str, int | float | None]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class FeaturePlan:
    """How long training on features will take, in seconds, and what it consists of; `minutes` is
    the time that was asked for."""

    minutes: float
    seconds: float
    reason: str
    threads: int


def plan_features(
    photos: int, size: int, *, minutes: float, threads: int | None = None
) -> FeaturePlan:
    """Plan the training on this many photos of `size` pixels, after measuring how long the network
    takes for one."""
    threads = threads or count_cores()
    base = photos * _time_image(size) / threads
    seconds = max(60 * minutes, base)
    reason = (
        f"there is no GPU: features of {counted(photos, 'photo')} ({duration_text(base)}), then "
        "the last blocks are fine-tuned on them"
    )
    if base > _MAPS_SHARE * 60 * minutes:
        reason += f"; {minutes:g} minutes are short for so many photos, give more `minutes`"
    return FeaturePlan(minutes=minutes, seconds=seconds, reason=reason, threads=threads)


@torch.inference_mode()
def _time_image(size: int) -> float:
    frozen = FrozenLite0(EfficientNetLite0(classes=1), choose_form(torch.device("cpu")))
    images = torch.zeros(_TIMED_IMAGES, size, size, 3, dtype=torch.uint8)
    with fast_convolutions():
        frozen.maps_before(images, FIRST_BLOCK)
        started = time.process_time()
        frozen.maps_before(images, FIRST_BLOCK)
    return (time.process_time() - started) / _TIMED_IMAGES


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
    flip: bool,
    augment: bool = True,
    loss: Loss | None = None,
    seed: int = 0,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FittedOnFeatures:
    """Trains `network`, which has pretrained weights, on the training photos and leaves it with the
    weights of its best epoch on the validation photos. `splits` are indices into SPLITS; with
    `augment`, views of the photos are trained on too if there is time, mirrored ones with `flip`.

    Feature maps are cached in `folder`: the same call resumes after a kill. Raises
    TrainingStoppedError when `should_stop` returns true.
    """
    reporter, started = reporter or log_event, time.monotonic()
    source = PhotoSource(cached=cached, size=cached.size, flip=flip)
    maps = FeatureMaps(
        network,
        source,
        folder,
        threads=plan.threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    most = _MOST_VIEWS if augment else 0
    photos = _open_photos(maps, source, labels, splits, started, plan, most)
    with fast_convolutions():
        tuning = _Tuning(network, photos, loss or F.cross_entropy, seed, reporter, should_stop)
        left = 60 * plan.minutes - (time.monotonic() - started)
        tuning.run(max(0.0, _STEPS_SHARE * left), most_seconds=60 * plan.minutes)
    names = sorted({photo.label or "" for photo in cached.photos})
    notes = (*_warn_of_few(labels[splits == SPLITS.index("train")], names), tuning.note)
    return FittedOnFeatures(history=tuning.history, best_epoch=tuning.best_epoch, notes=notes)


@dataclass(frozen=True, kw_only=True)
class _Photos:
    """The maps of the training photos, of their views, and of the validation photos."""

    train: Float[Tensor, "views photos rows columns 192"]
    train_labels: Int64[Tensor, " photos"]
    validation: Float[Tensor, "validated rows columns 192"]
    validation_labels: Int64[Tensor, " validated"]


def _open_photos(
    maps: FeatureMaps,
    source: PhotoSource,
    labels: np.ndarray,
    splits: np.ndarray,
    started: float,
    plan: FeaturePlan,
    most_views: int,
) -> _Photos:
    digests = np.array(source.cached.digests)
    chosen = {split: splits == SPLITS.index(split) for split in ("train", "validation")}
    names = {split: digests[mask].tolist() for split, mask in chosen.items()}
    keys = [(digest, 0) for split in names for digest in names[split]]
    plain = maps.compute(keys)
    train, count = names["train"], len(names["train"])
    most = min(most_views, _count_views_in_memory(count, source.size))
    more: list[Tensor] = []
    begun, until = time.monotonic(), started + _MAPS_SHARE * 60 * plan.minutes
    # Another view, if it will be done in time: those before it say how long it takes.
    while (
        len(more) < most
        and time.monotonic() + (time.monotonic() - begun) / max(1, len(more)) < until
    ):
        view = len(more) + 1
        more.append(maps.compute([(digest, view) for digest in train]))
    return _Photos(
        train=torch.stack([plain[:count], *more]),
        train_labels=torch.from_numpy(labels[chosen["train"]]),
        validation=plain[count:],
        validation_labels=torch.from_numpy(labels[chosen["validation"]]),
    )


def _count_views_in_memory(photos: int, size: int) -> int:
    """How many augmented views there is memory for."""
    room = _MEMORY_SHARE * psutil.virtual_memory().available / max(1, photos * map_bytes(size))
    return max(0, int(room) - 1)


class _Tuning:
    """Fits the head, then fine-tunes the last blocks; `history`, `best_epoch` and `note` say what
    happened."""

    def __init__(
        self,
        network: EfficientNetLite0,
        photos: _Photos,
        loss: Loss,
        seed: int,
        reporter: Reporter,
        should_stop: Callable[[], bool],
    ) -> None:
        self._network, self._photos, self._loss = network, photos, loss
        self._reporter, self._should_stop = reporter, should_stop
        self._draw = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # of the dropout
        self._blocks = LastBlocks(network)
        self._best: tuple[float, float] = (-1.0, 0.0)
        self.history: list[Row] = []
        self.best_epoch, self.note = 1, ""

    def run(self, seconds: float, *, most_seconds: float) -> None:
        """Train for about `seconds`; the fewest epochs may take `most_seconds`."""
        started = time.monotonic()
        head, loss = self._fit_head()
        self._keep(self._describe(1, 0, loss, time.monotonic() - started))
        left = seconds - (time.monotonic() - started)
        epochs = self._count_epochs(left, most_seconds)
        self.note = _explain(head, epochs, len(self._photos.train) - 1)
        if epochs:
            self._tune(epochs)

    def _fit_head(self) -> tuple[LinearHead, float]:
        """Fit the head to the photos themselves; returns it with its loss."""
        photos, blocks = self._photos, self._blocks
        embedding = self._embed(photos.train[0])
        classes = blocks.classify.out_features
        head = choose_head(embedding, photos.train_labels.numpy(), classes)
        with torch.no_grad():
            blocks.classify.weight.copy_(torch.from_numpy(head.weight))
            blocks.classify.bias.copy_(torch.from_numpy(head.bias))
        logits = torch.from_numpy(head.logits(embedding))
        return head, float(self._loss(logits, photos.train_labels))

    @torch.inference_mode()
    def _embed(self, maps: Tensor) -> np.ndarray:
        blocks = self._blocks.eval()
        parts = [blocks.embed(part.float()) for part in maps.split(_SCORED_AT_ONCE)]
        return torch.cat(parts).numpy()

    def _count_epochs(self, seconds: float, most_seconds: float) -> int:
        """How many epochs there is time for; 0 if even the fewest take too long."""
        steps = _steps(len(self._photos.train_labels))
        times = []
        for _ in range(_TIMED_STEPS):
            started = time.monotonic()
            self._losses(torch.arange(min(_BATCH, len(self._photos.train_labels)))).backward()
            times.append(time.monotonic() - started)
        self._blocks.zero_grad()
        each = min(times) * steps
        if _FEWEST_EPOCHS * each > max(seconds, most_seconds):
            return 0
        return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, int(seconds / each)))

    def _losses(self, places: Tensor) -> Tensor:
        """The loss of a batch: of each photo, one of its views."""
        photos = self._photos
        views = torch.randint(len(photos.train), places.shape, generator=self._draw)
        logits = self._blocks.train()(photos.train[views, places].float())
        return self._loss(logits, photos.train_labels[places])

    def _tune(self, epochs: int) -> None:
        count = len(self._photos.train_labels)
        total = epochs * _steps(count)
        optimizer = self._optimizer()
        work = WorkStarted(
            noun="steps",
            planned=total,
            estimate=f"fine-tuning the last blocks: {counted(epochs, 'epoch')}",
        )
        with report_work(self._reporter, work):
            for epoch in range(epochs):
                self._run_epoch(epoch, total, optimizer)

    def _run_epoch(self, epoch: int, total: int, optimizer: torch.optim.Optimizer) -> None:
        started, losses = time.monotonic(), []
        count = len(self._photos.train_labels)
        step = epoch * _steps(count)
        for places in torch.randperm(count, generator=self._draw).split(_BATCH):
            for group in optimizer.param_groups:
                group["lr"] = _PEAK * _schedule(step / total)
            optimizer.zero_grad()
            loss = self._losses(places)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._blocks.parameters(), _MOST_GRADIENT)
            optimizer.step()
            losses.append(float(loss.detach()) * len(places))
            step += 1
            self._reporter(WorkAdvanced())
            if self._should_stop():
                raise TrainingStoppedError(
                    f"stopped while fine-tuning, in epoch {epoch + 1:,}: the features are saved."
                )
        seconds = time.monotonic() - started
        self._keep(self._describe(epoch + 2, step, sum(losses) / count, seconds))

    def _optimizer(self) -> torch.optim.Optimizer:
        """Fine-tuning starts with an empty head: one that fits the training photos already would
        leave the blocks next to no gradient."""
        torch.nn.init.zeros_(self._blocks.classify.weight)
        torch.nn.init.zeros_(self._blocks.classify.bias)
        return torch.optim.AdamW(self._blocks.parameters(), lr=_PEAK, weight_decay=_DECAY)

    def _describe(self, epoch: int, step: int, loss: float, seconds: float) -> Row:
        """A row of the log, with the metrics of the validation photos."""
        labels = self._photos.validation_labels
        logits = self._score(self._photos.validation)
        count = len(self._photos.train_labels)
        validated = float(self._loss(logits, labels)) if len(labels) else None
        right = float((logits.argmax(1) == labels).float().mean()) if len(labels) else None
        return {
            "epoch": epoch,
            "step": step,
            "train_loss": loss,
            "val_loss": validated,
            "val_accuracy": right,
            "samples_per_second": count / max(seconds, 1e-9),
            "seconds": seconds,
        }

    @torch.inference_mode()
    def _score(self, maps: Tensor) -> Tensor:
        blocks = self._blocks.eval()
        parts = [blocks(part.float()) for part in maps.split(_SCORED_AT_ONCE)]
        return torch.cat([torch.zeros(0, blocks.classify.out_features), *parts])

    def _keep(self, row: Row) -> None:
        """Keep the epoch's weights if they are the best so far; of equals, those with the lower
        loss."""
        self.history.append(row)
        reached = (row["val_accuracy"] or 0.0, -(row["val_loss"] or 0.0))
        if reached >= self._best:
            self._best, self.best_epoch = reached, len(self.history)
            self._blocks.write_into(self._network)


def _steps(photos: int) -> int:
    return -(-photos // _BATCH)


def _schedule(way: float) -> float:
    """The share of the peak learning rate: it rises, then falls along a half cosine."""
    if way < _WARM:
        return (way + 0.01) / (_WARM + 0.01)
    return (1 + math.cos(math.pi * (way - _WARM) / (1 - _WARM))) / 2


def _explain(head: LinearHead, epochs: int, views: int) -> str:
    found = f"the head is {head.method}, {head.accuracy:.1%} accurate by leave-one-out"
    if not epochs:
        return f"{found}; there was no time to fine-tune the last blocks (give more `minutes`)"
    more = f" and {counted(views, 'augmented view')} of each" if views else ""
    return f"{found}; the last blocks were fine-tuned on the photos{more} for {epochs} epochs"


def _warn_of_few(labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """Say which classes have too few training photos."""
    counts = np.bincount(labels, minlength=len(names))
    few = [f'"{name}" ({count})' for name, count in zip(names, counts, strict=True) if count < _FEW]
    if not few:
        return []
    return [
        f"classes with fewer than {_FEW} training photos: {list_some(few)}. Add photos to them."
    ]
