"""What a long run tells while it goes on; the command line shows it, the library only logs."""

import logging
from dataclasses import dataclass
from typing import Protocol

from clew.hallucination.capture.plan import Estimate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How much has been done since the last time: traces, tokens recorded, bytes written."""

    traces: int
    tokens: int
    bytes: int


class Reporter(Protocol):
    """Receives the events of a run; `advance` is called from the thread that writes."""

    def say(self, message: str) -> None: ...

    def begin(self, done: int, planned: int, estimate: Estimate) -> None:
        """Work begins: `done` of this part's `planned` traces are in finished shards."""

    def keep(self, traces: int) -> None:
        """So many traces of an unfinished shard were taken over from an earlier run."""

    def advance(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


class LoggingReporter:
    """Sends sentences to the log and keeps quiet about the rest."""

    def say(self, message: str) -> None:
        logger.info(message)

    def begin(self, done: int, planned: int, estimate: Estimate) -> None:
        logger.info("%d of %d traces done, %s to come", done, planned, estimate)

    def keep(self, traces: int) -> None:
        logger.info("%d traces of an earlier run kept", traces)

    def advance(self, progress: Progress) -> None:
        logger.debug("%s", progress)

    def end(self) -> None:
        logger.debug("end")
