"""What a long run tells while it goes on; the command line shows it, the library only logs."""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class Reporter(Protocol):
    """Receives the events of a run; `advance` is called from the threads that write."""

    def say(self, message: str) -> None: ...

    def begin(self, done: int, planned: int, max_bytes: int) -> None:
        """Work begins: `done` of `planned` samples are in finished shards."""

    def advance(self, samples: int, written_bytes: int) -> None: ...

    def end(self) -> None: ...


class LoggingReporter:
    """Sends sentences to the log and keeps quiet about the rest."""

    def say(self, message: str) -> None:
        logger.info(message)

    def begin(self, done: int, planned: int, max_bytes: int) -> None:
        logger.info("%d of %d samples done, at most %d bytes to come", done, planned, max_bytes)

    def advance(self, samples: int, written_bytes: int) -> None:
        logger.debug("%d samples, %d bytes", samples, written_bytes)

    def end(self) -> None:
        logger.debug("end")
