"""What a training run reports, from the process that writes (rank 0)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from clew.base.progress import Event
from clew.base.texts import counted
from clew.engine.planning.plan import HardwarePlan
from clew.engine.state import FitResult


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
