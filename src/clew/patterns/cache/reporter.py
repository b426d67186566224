"""What decoding many photos tells while it goes on; the command line shows it."""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class CacheReporter(Protocol):
    """Receives the events; all come from the thread that called."""

    def say(self, message: str) -> None: ...

    def begin_caching(self, done: int, planned: int, max_bytes: int) -> None:
        """Photos are about to be decoded: `done` of `planned` are there already. Not called when
        nothing is to be done."""

    def advance_caching(self, photos: int, written_bytes: int) -> None:
        """So many more were looked at, faulty ones and copies too."""

    def end_caching(self) -> None:
        """Also when it ends early."""


class LoggingCacheReporter:
    """Sends it all to the log."""

    def say(self, message: str) -> None:
        logger.info(message)

    def begin_caching(self, done: int, planned: int, max_bytes: int) -> None:
        logger.info("%d of %d photos are there, at most %d bytes to come", done, planned, max_bytes)

    def advance_caching(self, photos: int, written_bytes: int) -> None:
        logger.debug("%d photos, %d bytes", photos, written_bytes)

    def end_caching(self) -> None:
        logger.debug("no more photos are decoded")
