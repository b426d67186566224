"""Where a run is: all that must be saved, besides weights and optimizer, to resume it exactly; and
what a finished run gives back."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from clew.engine.config import Monitor
from clew.engine.evaluate import Metrics
from clew.engine.feed import Position
from clew.engine.figures import EpochSums
from clew.engine.folders import RESULT, write_json
from clew.engine.planning.plan import HardwarePlan


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


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A trained network's figures. `best_epoch` counts from 1; `best_val` are the metrics of its
    validation, `threshold` the probability where its F1 is greatest, at which `test` is taken.

    `seconds` counts all runs that it took, validation included; the rates are those of training
    alone. `history` has a row an epoch, as log.csv.
    """

    history: list[dict[str, Any]]
    best_epoch: int
    best_val: Metrics
    threshold: float | None
    test: Metrics | None
    plan: HardwarePlan
    seconds: float
    samples_per_second: float
    data_wait_share: float
    peak_memory_bytes: int
    parameters: int

    @classmethod
    def of_run(
        cls, state: RunState, plan: HardwarePlan, *, test: Metrics | None, parameters: int
    ) -> Self:
        assert state.best is not None
        return cls(
            history=state.history,
            best_epoch=state.best.epoch + 1,
            best_val=state.best.metrics,
            threshold=state.best.threshold,
            test=test,
            plan=plan,
            seconds=state.seconds,
            samples_per_second=_over_all(state.history, "samples_per_second"),
            data_wait_share=_over_all(state.history, "data_wait_share"),
            peak_memory_bytes=state.peak_memory_bytes,
            parameters=parameters,
        )

    def save(self, folder: Path) -> None:
        write_json(folder / RESULT, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        return cls(**saved | {"plan": HardwarePlan.from_dict(saved["plan"])})


def _over_all(history: list[dict[str, Any]], name: str) -> float:
    """The mean over the time of all epochs."""
    seconds = sum(row["seconds"] for row in history)
    return sum(row[name] * row["seconds"] for row in history) / max(1e-9, seconds)
