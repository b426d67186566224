"""What identifying a folder tells while it goes on."""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class IdentifyReporter(Protocol):
    """Shows how far it is; the command has one that draws a bar."""

    def begin(self, photos: int) -> None:
        """So many photos are about to be looked at."""

    def advance(self, photos: int) -> None:
        """So many more are done."""

    def end(self) -> None:
        """All are done, or it was stopped."""


class LoggingReporter:
    """Sends it to the log."""

    def begin(self, photos: int) -> None:
        logger.info("identifying %d photos", photos)

    def advance(self, photos: int) -> None:
        """Nothing: a log has no bar."""

    def end(self) -> None:
        """Nothing."""
