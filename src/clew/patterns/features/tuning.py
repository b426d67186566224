"""Fits the head, then fine-tunes the last blocks, on feature maps. Every epoch is saved, so that a
kill loses at most one."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from clew.base.errors import TrainingStoppedError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import counted
from clew.engine.seeding import seed_epoch
from clew.patterns.augment import Mixup
from clew.patterns.features.heads import LinearHead, choose_head
from clew.patterns.features.last_blocks import LastBlocks
from clew.patterns.features.tuning_file import Progress, Row, SavedTuning, TuningFile
from clew.patterns.networks.lite0 import EfficientNetLite0

_MOST_EPOCHS = 30
# Fine-tuning is what makes a good classifier: it gets this many epochs even if the features took
# longer than expected, unless they would take all of the time again.
_FEWEST_EPOCHS = 3
_BATCH, _SCORED_AT_ONCE = 32, 256
_PEAK, _WARM, _DECAY = 1e-3, 0.1, 1e-4
_MOST_GRADIENT = 1.0
_TIMED_STEPS = 3

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class PhotoMaps:
    """The maps of the training photos, of their views, and of the validation photos."""

    train: Float[Tensor, "views photos rows columns 192"]
    train_labels: Int64[Tensor, " photos"]
    validation: Float[Tensor, "validated rows columns 192"]
    validation_labels: Int64[Tensor, " validated"]


class Tuning:
    """Fits the head, then fine-tunes the last blocks, or resumes that from `file`; `progress` and
    `note` say what happened."""

    def __init__(
        self,
        network: EfficientNetLite0,
        photos: PhotoMaps,
        loss: Loss,
        seed: int,
        reporter: Reporter,
        should_stop: Callable[[], bool],
        file: TuningFile | None = None,
        *,
        mixup: float = 0.0,
    ) -> None:
        self._network, self._photos, self._loss = network, photos, loss
        self._reporter, self._should_stop = reporter, should_stop
        self._file, self._seed, self._draw = file, seed, torch.Generator()
        self._blocks = LastBlocks(network)
        self._mixup = Mixup(mixup) if mixup else None
        self._best_weights: dict[str, Tensor] = {}
        self.progress = Progress(views=len(photos.train) - 1)

    @property
    def note(self) -> str:
        return _explain(self.progress)

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
            self._empty_head()
            self._tune(self._optimizer())

    def resume(self, saved: SavedTuning) -> None:
        """Continue after the last epoch that was saved. Raises StoreError if that is damaged."""
        self.progress = saved.progress
        saved.load_best(self._blocks)
        self._keep_weights()
        optimizer = self._optimizer()
        saved.load_last(self._blocks, optimizer)
        self._tune(optimizer)

    def _seed_epoch(self, epoch: int) -> None:
        """The random numbers of an epoch, the dropout's too, do not depend on those before it."""
        self._draw.manual_seed(seed_epoch(self._seed, epoch))

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
        places = torch.arange(min(_BATCH, len(self._photos.train_labels)))
        optimizer = self._optimizer()
        # Without a learning rate, the weights stay as they are.
        steps = [_time(lambda: self._step(places, optimizer, lr=0.0)) for _ in range(_TIMED_STEPS)]
        self._blocks.zero_grad()
        each = median(steps) * _steps(len(self._photos.train_labels))
        each += _time(lambda: self._score(self._photos.validation))
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
        photos = self._photos
        views = torch.randint(len(photos.train), places.shape, generator=self._draw)
        maps, targets = photos.train[views, places].float(), photos.train_labels[places]
        if self._mixup is not None:
            classes = self._blocks.classify.out_features
            maps, targets = self._mixup(maps, F.one_hot(targets, classes).float())
        return self._loss(self._blocks.train()(maps), targets)

    def _tune(self, optimizer: torch.optim.Optimizer) -> None:
        steps = _steps(len(self._photos.train_labels))
        done, epochs = self.progress.tuned, self.progress.epochs
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
        count = len(self._photos.train_labels)
        step = epoch * _steps(count)
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

    def _empty_head(self) -> None:
        """Fine-tuning starts with an empty head: one that fits the training photos already would
        leave the blocks next to no gradient."""
        torch.nn.init.zeros_(self._blocks.classify.weight)
        torch.nn.init.zeros_(self._blocks.classify.bias)

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters = self._blocks.parameters()
        return torch.optim.AdamW(parameters, lr=_PEAK, weight_decay=_DECAY, fused=True)

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


def _steps(photos: int) -> int:
    return -(-photos // _BATCH)


def _schedule(way: float) -> float:
    """The share of the peak learning rate: it rises, then falls along a half cosine."""
    if way < _WARM:
        return (way + 0.01) / (_WARM + 0.01)
    return (1 + math.cos(math.pi * (way - _WARM) / (1 - _WARM))) / 2


def _explain(progress: Progress) -> str:
    found, views = f"the head is {progress.head}", progress.views
    if not progress.epochs:
        return f"{found}; there was no time to fine-tune the last blocks (give more `minutes`)"
    more = f" and {counted(views, 'augmented view')} of each" if views else ""
    return (
        f"{found}; the last blocks were fine-tuned on the photos{more} for {progress.epochs} epochs"
    )
