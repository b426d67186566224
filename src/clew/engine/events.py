"""What a training run reports, from the process that writes (rank 0)."""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from clew.engine.planning.plan import HardwarePlan
from clew.progress import Event


@dataclass(frozen=True, kw_only=True)
class TrainingStarted(Event):
    """`done_steps` of `steps` optimizer steps were taken by an earlier run."""

    plan: HardwarePlan
    epochs: int
    steps: int
    done_steps: int

    def __str__(self) -> str:
        done = f"{self.done_steps:,} of {self.steps:,} steps done, {self.epochs:,} epochs"
        return f"{done}, {self.plan.choices}"


@dataclass(frozen=True, kw_only=True)
class TrainingProgress(Event):
    """How far the run is, told a few times a second.

    Rates are of the epoch so far. `loss` is the epoch's mean as far as it was read back.
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
    """`row` is the epoch's line of log.csv."""

    row: dict[str, Any]

    def __str__(self) -> str:
        return str(self.row)


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(Event):
    """The run is over, or stopped early."""

    level: ClassVar[int] = logging.DEBUG
