"""Training without a GPU, within minutes: feature maps of all photos, a head fitted in closed form,
then the last blocks fine-tuned on the maps for as long as there is time. Every epoch is saved."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import psutil
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from clew.base.cores import count_cores
from clew.base.cpu import fast_convolutions, time_on_core
from clew.base.errors import StoreError, TrainingStoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.texts import counted, duration_text, list_some
from clew.base.typed_json import Bounds, Count, read_as, without_nan
from clew.engine.checkpoint import load_optimizer_state
from clew.engine.feed import seed_epoch
from clew.engine.model_files import ModelFile, check_about, read_model, write_model
from clew.engine.setup import optimizer_tensors
from clew.patterns.augment import AugmentConfig, Mixup
from clew.patterns.cache.build import CachedPhotos
from clew.patterns.features.compute import compute_maps, map_bytes
from clew.patterns.features.frozen import FIRST_BLOCK, FrozenLite0, LastBlocks, choose_form
from clew.patterns.features.heads import LinearHead, choose_head
from clew.patterns.features.store import Key, PhotoSource, Views
from clew.patterns.networks.lite0 import EfficientNetLite0
from clew.patterns.photos.photo import SPLITS
from clew.storage.place import AccessDeniedError

TUNING_FILE = "tuning.safetensors"
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
_BATCH, _SCORED_AT_ONCE = 32, 256
_PEAK, _WARM, _DECAY = 1e-3, 0.1, 1e-4
_MOST_GRADIENT = 1.0
_NOW, _BEST, _OPTIMIZER = "now/", "best/", "optimizer/"
_ADVICE = "delete it to train again"

Loss = Callable[[Tensor, Tensor], Tensor]
Row = dict[str, int | float | None]


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
        seconds=evaluating,
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


@dataclass(kw_only=True)
class Progress:
    """What was done: `head` describes the head, `epochs` are planned on the photos and `views` of
    each. `history` has one row per epoch as in log.csv, the first of the head alone; `best_epoch`
    counts from 1."""

    views: Annotated[int, Bounds(least=0, most=100)]
    epochs: Count = 0
    head: str = ""
    history: list[Row] = field(default_factory=list)
    best_epoch: Count = 1

    @property
    def tuned(self) -> int:
        """How many epochs of fine-tuning are done."""
        return max(0, len(self.history) - 1)

    @property
    def best(self) -> Row:
        return self.history[self.best_epoch - 1]


class TuningFile:
    """The checkpoint of one run: what the next epoch starts from. `identity` is what must be the
    same to resume it."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self._identity = json.loads(json.dumps(identity, default=str))
        self._file: ModelFile | None = None

    def read(self) -> Progress | None:
        """What was done; None without a checkpoint of this run. Raises StoreError if it is
        damaged."""
        if not self.path.exists():
            return None
        file = read_model(self.path)
        wanted = {"identity": dict, "progress": Progress}
        check_about(self.path, file.about, wanted, what="a checkpoint", advice=_ADVICE)
        if file.about["identity"] != self._identity:
            return None
        progress: Progress = read_as(Progress, without_nan(file.about["progress"]), "progress")
        if not 1 <= progress.best_epoch <= len(progress.history) <= progress.epochs + 1:
            raise StoreError(f'the epochs in "{self.path}" contradict each other: {_ADVICE}.')
        self._file = file
        return progress

    def load_best(self, blocks: LastBlocks) -> None:
        """Give the blocks the weights of the best epoch. Raises StoreError if they are damaged."""
        assert self._file is not None
        self._file.load_into(blocks, name="lite0", prefix=_BEST)

    def load_last(self, blocks: LastBlocks, optimizer: torch.optim.Optimizer) -> None:
        """Restore weights and optimizer as they were after the last epoch. Raises StoreError."""
        assert self._file is not None
        self._file.load_into(blocks, name="lite0", prefix=_NOW)
        load_optimizer_state(optimizer, blocks, self._file)

    def write(
        self,
        progress: Progress,
        blocks: LastBlocks,
        best: Mapping[str, Tensor],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Raises StoreError if the disk is full."""
        parts = {
            _NOW: blocks.state_dict(),
            _BEST: best,
            _OPTIMIZER: optimizer_tensors(optimizer, blocks),
        }
        tensors = {
            f"{prefix}{name}": value for prefix, of in parts.items() for name, value in of.items()
        }
        write_model(self.path, tensors, {"identity": self._identity, "progress": asdict(progress)})

    def remove(self) -> None:
        """Where nothing may be deleted, it stays: nobody reads it again."""
        with suppress(AccessDeniedError):
            self.path.unlink(missing_ok=True)


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
    compute = partial(
        compute_maps,
        network,
        source,
        folder,
        threads=plan.threads,
        reporter=reporter,
        should_stop=should_stop,
    )
    saved = file.read() if file is not None else None
    most, until = _MOST_VIEWS if augment != AugmentConfig.nothing() else 0, math.inf
    if saved is not None:
        most = saved.views
    else:
        until = started + _MAPS_SHARE * plan.training_seconds
    chosen = {split: splits == SPLITS.index(split) for split in ("train", "validation")}
    digests = [np.array(cached.digests)[mask].tolist() for mask in chosen.values()]
    train, validation = _compute_maps(compute, *digests, most=most, until=until, size=cached.size)
    tuning = _Tuning(
        network,
        (train, torch.from_numpy(labels[chosen["train"]])),
        (validation, torch.from_numpy(labels[chosen["validation"]])),
        loss or F.cross_entropy,
        seed,
        reporter,
        should_stop,
        file,
        mixup=augment.mixup,
    )
    with fast_convolutions():
        if saved is not None and file is not None:
            tuning.resume(saved, file)
        else:
            left = plan.training_seconds - (time.monotonic() - started)
            tuning.run(max(0.0, left), most_seconds=plan.training_seconds)
    done = tuning.progress
    names = sorted({photo.label or "" for photo in cached.photos})
    notes = (*_warn_of_few(labels[chosen["train"]], names), _explain(done))
    return FittedOnFeatures(history=done.history, best_epoch=done.best_epoch, notes=notes)


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
    most = min(most, _count_views_in_memory(count, size))
    more: list[Tensor] = []
    begun = time.monotonic()
    # Another view, if it will be done in time: those before it say how long it takes.
    while (
        len(more) < most
        and time.monotonic() + (time.monotonic() - begun) / max(1, len(more)) < until
    ):
        more.append(compute([(digest, len(more) + 1) for digest in train]))
    return torch.stack([plain[:count], *more]), plain[count:]


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


def _explain(progress: Progress) -> str:
    found, views = f"the head is {progress.head}", progress.views
    if not progress.epochs:
        return f"{found}; there was no time to fine-tune the last blocks (give more `minutes`)"
    more = f" and {counted(views, 'augmented view')} of each" if views else ""
    return (
        f"{found}; the last blocks were fine-tuned on the photos{more} for {progress.epochs} epochs"
    )


class _Tuning:
    """Fits the head, then fine-tunes the last blocks, or resumes that from `file`; `progress` says
    what happened. `train` and `validation` are maps and labels; the former of every view."""

    def __init__(
        self,
        network: EfficientNetLite0,
        train: tuple[Float[Tensor, "views photos rows columns 192"], Int64[Tensor, " photos"]],
        validation: tuple[Float[Tensor, "photos rows columns 192"], Int64[Tensor, " photos"]],
        loss: Loss,
        seed: int,
        reporter: Reporter,
        should_stop: Callable[[], bool],
        file: TuningFile | None = None,
        *,
        mixup: float = 0.0,
    ) -> None:
        self._network, self._loss = network, loss
        self._train, self._train_labels = train
        self._validation, self._validation_labels = validation
        self._reporter, self._should_stop = reporter, should_stop
        self._file, self._seed, self._draw = file, seed, torch.Generator()
        self._blocks = LastBlocks(network)
        self._mixup = Mixup(mixup) if mixup else None
        self._best_weights: dict[str, Tensor] = {}
        self._steps = -(-len(self._train_labels) // _BATCH)  # of an epoch
        self.progress = Progress(views=len(self._train) - 1)

    def run(self, seconds: float, *, most_seconds: float) -> None:
        """Train for about `seconds`; the fewest epochs may take `most_seconds`."""
        started = time.monotonic()
        self._seed_epoch(0)
        head, loss = self._fit_head()
        self.progress.head = f"{head.method}, {head.accuracy:.1%} accurate by leave-one-out"
        self._keep(self._describe(1, 0, loss, time.monotonic() - started))
        left = seconds - (time.monotonic() - started)
        self.progress.epochs = self._count_epochs(left, most_seconds)
        if self.progress.epochs:
            # With an empty head: one that fits the training photos already would leave the blocks
            # next to no gradient.
            torch.nn.init.zeros_(self._blocks.classify.weight)
            torch.nn.init.zeros_(self._blocks.classify.bias)
            self._tune(self._optimizer())

    def resume(self, progress: Progress, file: TuningFile) -> None:
        """Continue after the last epoch that was saved. Raises StoreError if that is damaged."""
        self.progress = progress
        file.load_best(self._blocks)
        self._keep_weights()
        optimizer = self._optimizer()
        file.load_last(self._blocks, optimizer)
        self._tune(optimizer)

    def _seed_epoch(self, epoch: int) -> None:
        """The random numbers of an epoch, the dropout's too, do not depend on those before it."""
        self._draw.manual_seed(seed_epoch(self._seed, epoch))

    def _fit_head(self) -> tuple[LinearHead, float]:
        """Fit the head to the photos themselves; returns it with its loss."""
        blocks = self._blocks
        embedding = self._embed(self._train[0])
        classes = blocks.classify.out_features
        head = choose_head(embedding, self._train_labels.numpy(), classes)
        with torch.no_grad():
            blocks.classify.weight.copy_(torch.from_numpy(head.weight))
            blocks.classify.bias.copy_(torch.from_numpy(head.bias))
        logits = torch.from_numpy(head.logits(embedding))
        return head, float(self._loss(logits, self._train_labels))

    @torch.inference_mode()
    def _embed(self, maps: Tensor) -> np.ndarray:
        blocks = self._blocks.eval()
        parts = [blocks.embed(part.float()) for part in maps.split(_SCORED_AT_ONCE)]
        return torch.cat(parts).numpy()

    def _count_epochs(self, seconds: float, most_seconds: float) -> int:
        """How many epochs there is time for; 0 if even the fewest take too long."""
        places = torch.arange(min(_BATCH, len(self._train_labels)))
        optimizer = self._optimizer()
        # Without a learning rate, the weights stay as they are.
        steps = [_time(lambda: self._step(places, optimizer, lr=0.0)) for _ in range(_TIMED_STEPS)]
        self._blocks.zero_grad()
        each = median(steps) * self._steps
        each += _time(lambda: self._score(self._validation))
        if _FEWEST_EPOCHS * each > max(seconds, most_seconds):
            return 0
        return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, int(seconds / each)))

    def _step(self, places: Tensor, optimizer: torch.optim.Optimizer, *, lr: float) -> float:
        """Take one step on these photos; returns their loss."""
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = self._losses(places)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._blocks.parameters(), _MOST_GRADIENT)
        optimizer.step()
        return float(loss.detach())

    def _losses(self, places: Tensor) -> Tensor:
        """The loss of a batch: of each photo, one of its views, mixed with that of another."""
        views = torch.randint(len(self._train), places.shape, generator=self._draw)
        maps, targets = self._train[views, places].float(), self._train_labels[places]
        if self._mixup is not None:
            classes = self._blocks.classify.out_features
            maps, targets = self._mixup(maps, F.one_hot(targets, classes).float())
        return self._loss(self._blocks.train()(maps), targets)

    def _tune(self, optimizer: torch.optim.Optimizer) -> None:
        steps, done, epochs = self._steps, self.progress.tuned, self.progress.epochs
        work = WorkStarted(
            noun="steps",
            planned=epochs * steps,
            done=done * steps,
            estimate=f"fine-tuning the last blocks: {counted(epochs, 'epoch')}",
        )
        with report_work(self._reporter, work):
            for epoch in range(done, epochs):
                self._run_epoch(epoch, epochs * steps, optimizer)
                if self._file is not None:
                    self._file.write(self.progress, self._blocks, self._best_weights, optimizer)

    def _run_epoch(self, epoch: int, total: int, optimizer: torch.optim.Optimizer) -> None:
        started, losses = time.monotonic(), []
        count = len(self._train_labels)
        step = epoch * self._steps
        self._seed_epoch(epoch + 1)
        for places in torch.randperm(count, generator=self._draw).split(_BATCH):
            loss = self._step(places, optimizer, lr=_PEAK * _schedule(step / total))
            losses.append(loss * len(places))
            step += 1
            self._reporter(WorkAdvanced())
            if self._should_stop():
                raise TrainingStoppedError(
                    f"stopped while fine-tuning, in epoch {epoch + 1:,}: the features and the "
                    "epochs before it are saved."
                )
        seconds = time.monotonic() - started
        self._keep(self._describe(epoch + 2, step, sum(losses) / count, seconds))

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters = self._blocks.parameters()
        return torch.optim.AdamW(parameters, lr=_PEAK, weight_decay=_DECAY, fused=True)

    def _describe(self, epoch: int, step: int, loss: float, seconds: float) -> Row:
        """A row of the log, with the metrics of the validation photos."""
        labels = self._validation_labels
        logits = self._score(self._validation)
        count = len(self._train_labels)
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
        progress = self.progress
        progress.history.append(row)
        if _rank(row) >= _rank(progress.best):
            progress.best_epoch = len(progress.history)
            self._keep_weights()

    def _keep_weights(self) -> None:
        self._best_weights = {
            name: value.clone() for name, value in self._blocks.state_dict().items()
        }
        self._blocks.write_into(self._network)


def _time(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _rank(row: Row) -> tuple[float, float]:
    return (row["val_accuracy"] or 0.0, -(row["val_loss"] or 0.0))


def _schedule(way: float) -> float:
    """The share of the peak learning rate: it rises, then falls along a half cosine."""
    if way < _WARM:
        return (way + 0.01) / (_WARM + 0.01)
    return (1 + math.cos(math.pi * (way - _WARM) / (1 - _WARM))) / 2
