"""What a run tells while it goes on; the command line shows it, the library only logs."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from clew.engine.planning.plan import HardwarePlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the run is, told a few times a second.

    Rates are of the epoch so far. `loss` is the epoch's mean as far as it was read back.
    """

    epoch: int
    step: int
    samples_per_second: float
    data_wait_share: float
    memory_bytes: int
    loss: float | None


class Reporter(Protocol):
    """Receives the events of a run, on the process that writes (rank 0)."""

    def say(self, message: str) -> None: ...

    def begin(self, plan: "HardwarePlan", *, epochs: int, steps: int, done_steps: int) -> None:
        """Training begins: `done_steps` of `steps` optimiser steps are behind an earlier run."""

    def advance(self, progress: Progress) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch ended; `row` is its line of log.csv."""

    def end(self) -> None: ...


class LoggingReporter:
    """Sends sentences and epochs to the log and keeps quiet about the rest."""

    def say(self, message: str) -> None:
        logger.info(message)

    def begin(self, plan: "HardwarePlan", *, epochs: int, steps: int, done_steps: int) -> None:
        logger.info("%d of %d steps (%d epochs) done, %s", done_steps, steps, epochs, plan.choices)

    def advance(self, progress: Progress) -> None:
        logger.debug("%s", progress)

    def epoch(self, row: dict[str, Any]) -> None:
        logger.info("%s", row)

    def end(self) -> None:
        logger.debug("end")


class SilentReporter:
    """For the processes that do not write: one voice is enough."""

    def say(self, message: str) -> None: ...

    def begin(self, plan: "HardwarePlan", *, epochs: int, steps: int, done_steps: int) -> None: ...

    def advance(self, progress: Progress) -> None: ...

    def epoch(self, row: dict[str, Any]) -> None: ...

    def end(self) -> None: ...
