"""Where a run is: all that must be saved, besides weights and optimiser, to go on exactly."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from clew.engine.config import Monitor
from clew.engine.feed import Position
from clew.engine.figures import EpochSums
from clew.engine.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class Best:
    """The epoch with the best validation so far; `threshold` is where its F1 is greatest."""

    epoch: int
    metrics: Metrics
    threshold: float | None

    def is_beaten_by(self, metrics: Metrics, monitor: Monitor) -> bool:
        name = monitored(metrics, monitor)
        new, old = metrics[name], self.metrics[name]
        if new is None or old is None:
            return old is None
        if new == old:  # few validation samples are often told apart equally well
            return _is_lower(metrics.get("loss"), self.metrics.get("loss"))
        return new < old if name == "loss" else new > old


def _is_lower(new: float | None, old: float | None) -> bool:
    return new is not None and old is not None and new < old


def monitored(metrics: Metrics, monitor: Monitor) -> str:
    """What decides: the loss where the wished-for figure is not defined, as AUROC is not when the
    validation samples are all of one class."""
    return monitor if metrics.get(monitor) is not None else "loss"


@dataclass(kw_only=True)
class RunState:
    """`epoch` counts from 0 and is the one under way; `step` counts optimiser steps that are done.

    `sums` and `position` belong to this process, the rest is the same in all of them.
    """

    total_steps: int = 0
    epoch: int = 0
    step: int = 0
    position: Position = field(default_factory=lambda: Position(epoch=0))
    sums: EpochSums = field(default_factory=EpochSums)
    epoch_seconds: float = 0.0
    epoch_wait_seconds: float = 0.0
    best: Best | None = None
    epochs_without_better: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    is_trained: bool = False

    def begin_next_epoch(self) -> None:
        self.epoch += 1
        self.position, self.sums = Position(epoch=self.epoch), EpochSums()
        self.epoch_seconds = self.epoch_wait_seconds = 0.0

    def consider(self, metrics: Metrics, threshold: float | None, monitor: Monitor) -> bool:
        """Whether the epoch that just ended is the best so far; counts those that are not."""
        if self.best is not None and not self.best.is_beaten_by(metrics, monitor):
            self.epochs_without_better += 1
            return False
        self.best = Best(epoch=self.epoch, metrics=metrics, threshold=threshold)
        self.epochs_without_better = 0
        return True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        parts = {
            "position": Position(**saved["position"]),
            "sums": EpochSums(**saved["sums"]),
            "best": Best(**saved["best"]) if saved["best"] else None,
        }
        return cls(**saved | parts)
