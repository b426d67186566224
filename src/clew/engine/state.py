"""A run's progress: the metrics of its steps, everything besides weights and optimizer that must be
saved to resume it exactly, the result of a finished run, and the events that it reports."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import nn

from clew.base.progress import Event
from clew.base.texts import counted
from clew.base.typed_json import Bounds, Count, Seconds, read_as, without_nan
from clew.engine.classifier import Metrics
from clew.engine.config import Monitor
from clew.engine.feed import Position
from clew.engine.plan import HardwarePlan
from clew.engine.step import StepResult

# One row of log.csv: every number that it may have, and those that are always there.
Row = dict[str, int | float | None]
_ROW_COLUMNS = ("epoch", "step", "samples_per_second", "data_wait_share", "seconds")
# Where probabilities are rounded to 0, -0.5 calls every sample positive.
Threshold = Annotated[float, Bounds(least=-0.5, most=1)]
# A GPU runs asynchronously; reading a value makes the host wait for it, so that is done rarely.
STEPS_A_READING = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One step: means over this process's samples; the norm is that of all processes."""

    samples: int
    gradient_norm: float
    means: dict[str, float]

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.gradient_norm) and self.has_finite_loss

    @property
    def has_finite_loss(self) -> bool:
        return math.isfinite(self.means["loss"])


class Readings:
    """Holds the metrics of up to `size` steps on the device; reading them is one copy."""

    def __init__(self, device: torch.device) -> None:
        self._size = STEPS_A_READING if device.type == "cuda" else 1
        self._names: tuple[str, ...] = ()
        self._values: torch.Tensor | None = None
        self._samples: list[int] = []

    @property
    def is_full(self) -> bool:
        return len(self._samples) == self._size

    def add(self, result: StepResult) -> None:
        values = torch.stack([result.gradient_norm, result.loss, *result.metrics.values()])
        if self._values is None or len(values) != self._values.shape[1]:
            self._names = ("loss", *result.metrics)
            self._values = values.new_empty(self._size, len(values))
        self._values[len(self._samples)] = values
        self._samples.append(result.samples)

    def read(self) -> list[Figures]:
        """The steps since the last reading, in order; waits for the device."""
        if self._values is None or not self._samples:
            return []
        rows = self._values[: len(self._samples)].tolist()
        counts, self._samples = self._samples, []
        return [
            Figures(samples=count, gradient_norm=norm, means=dict(zip(self._names, means)))  # noqa: B905
            for count, (norm, *means) in zip(counts, rows, strict=True)
        ]


@dataclass(kw_only=True)
class EpochSums:
    """Running sums of an epoch, of one process or of all."""

    samples: Count = 0
    steps: Count = 0
    skipped: Count = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, figures: Figures) -> None:
        """Add a step. Skipped steps (fp16 skips some at first) count as seen, but do not enter the
        means."""
        self.steps += 1
        self.samples += figures.samples
        if not figures.is_finite:
            self.skipped += figures.samples
            return
        for name, mean in figures.means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * figures.samples

    def means(self) -> dict[str, float]:
        counted = self.samples - self.skipped
        return {name: value / counted for name, value in self.sums.items()} if counted else {}

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        """The sums over all processes."""
        whole = cls()
        for part in parts:
            whole.samples += part.samples
            whole.skipped += part.skipped
            whole.steps = part.steps
            for name, value in part.sums.items():
                whole.sums[name] = whole.sums.get(name, 0.0) + value
        return whole


@dataclass(frozen=True, kw_only=True)
class Best:
    """The epoch with the best validation so far; `threshold` is where its F1 is highest."""

    epoch: Count
    metrics: Metrics
    threshold: Threshold | None

    def is_beaten_by(self, metrics: Metrics, monitor: Monitor) -> bool:
        name = monitored(metrics, monitor)
        new, old = metrics[name], self.metrics[name]
        if new is None or old is None:
            return old is None
        if new == old:  # small validation sets often tie
            name, new, old = "loss", metrics.get("loss"), self.metrics.get("loss")
            if new is None or old is None:
                return False
        return new < old if name == "loss" else new > old


def monitored(metrics: Metrics, monitor: Monitor) -> str:
    """The metric that chooses the best epoch: the loss if the requested one is undefined, as AUROC
    is when all validation samples have the same label."""
    return monitor if metrics.get(monitor) is not None else "loss"


@dataclass(kw_only=True)
class RunState:
    """The progress of a run. `epoch` is the current one, counted from 0; `step` is the number of
    completed optimizer steps.

    `sums` and `position` belong to this process, the rest is the same in all of them.
    """

    total_steps: Count = 0
    epoch: Count = 0
    step: Count = 0
    position: Position = field(default_factory=lambda: Position(epoch=0))
    sums: EpochSums = field(default_factory=EpochSums)
    epoch_seconds: Seconds = 0.0
    epoch_wait_seconds: Seconds = 0.0
    best: Best | None = None
    epochs_without_better: Count = 0
    history: list[Row] = field(default_factory=list)
    seconds: Seconds = 0.0
    peak_memory_bytes: Count = 0
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

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The state that `asdict` gave; raises ValueError when it is invalid."""
        state = read_as(cls, without_nan(saved), "its state")
        _check_history(state.history)
        return state


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of a finished run.

    `best_epoch` (counted from 1) has the validation metrics `best_val`; `threshold` is the
    probability with the highest F1 on validation, and `test` holds the test metrics at that
    threshold. `seconds` is the total time over all interruptions, including validation;
    `samples_per_second` and `data_wait_share` (the fraction of time spent waiting for data) are of
    training alone. `history` has one row per epoch, like log.csv.
    """

    history: list[Row]
    best_epoch: Count
    best_val: Metrics
    threshold: Threshold | None
    test: Metrics | None
    plan: HardwarePlan
    seconds: Seconds
    samples_per_second: Seconds
    data_wait_share: Seconds
    peak_memory_bytes: Count
    parameters: Count

    @classmethod
    def of_run(
        cls, state: RunState, plan: HardwarePlan, model: nn.Module, *, test: Metrics | None
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
            parameters=sum(p.numel() for p in model.parameters()),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The result that `to_dict` gave; raises ValueError when it is invalid."""
        result = read_as(cls, without_nan(saved))
        _check_history(result.history)
        return result


def _check_history(history: list[Row]) -> None:
    for number, row in enumerate(history):
        for column in _ROW_COLUMNS:
            if row.get(column) is None:
                raise ValueError(f"row {number} of its history has no {column}")


def _over_all(history: list[dict[str, Any]], name: str) -> float:
    """The mean of a rate over all epochs, weighted by their duration."""
    seconds = sum(row["seconds"] for row in history)
    return sum(row[name] * row["seconds"] for row in history) / max(1e-9, seconds)


@dataclass(frozen=True, kw_only=True)
class TrainingStarted(Event):
    """A run starts or resumes. It writes into `output_dir`; `done_steps` of its `steps` optimizer
    steps were taken before. `settings` identify the run: it is resumed only with the same ones."""

    plan: HardwarePlan
    epochs: int
    steps: int
    done_steps: int
    output_dir: Path = Path()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expected_seconds(self) -> float | None:
        """How long the remaining steps will take, without validation; None if no step was
        measured."""
        seconds = self.plan.step_seconds
        left = self.steps - self.done_steps
        return None if seconds is None else left * seconds * self.plan.grad_accum

    def __str__(self) -> str:
        done = f"{self.done_steps:,} of {self.steps:,} steps done, {counted(self.epochs, 'epoch')}"
        return f"{done}, {self.plan.choices}"


@dataclass(frozen=True, kw_only=True)
class TrainingProgress(Event):
    """The run's progress, reported a few times per second.

    `epoch` counts from 1, `step` counts optimizer steps. `samples_per_second` and `data_wait_share`
    (the fraction of time spent waiting for data) are of the epoch so far; `loss` is the mean over
    its steps whose values have been read back.
    """

    level: ClassVar[int] = logging.DEBUG
    epoch: int
    step: int
    samples_per_second: float
    data_wait_share: float
    memory_bytes: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class EpochEnded(Event):
    """An epoch ended. `row` is its row of log.csv, by column name."""

    row: dict[str, Any]

    def __str__(self) -> str:
        return str(self.row)


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(Event):
    """The run is over: `result` is None when it stopped before the last epoch."""

    level: ClassVar[int] = logging.DEBUG
    result: FitResult | None = None

    def __str__(self) -> str:
        return "training stopped" if self.result is None else "training ended"


@dataclass(frozen=True, kw_only=True)
class ModelMeasured(Event):
    """The trained model was evaluated on other samples; `metrics` maps names to values, None if
    undefined."""

    level: ClassVar[int] = logging.DEBUG
    metrics: Mapping[str, float | None]
