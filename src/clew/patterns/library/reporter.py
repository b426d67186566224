"""What an import tells while it goes on."""

import logging
from typing import Protocol

logger = logging.getLogger(__name__)


class ImportReporter(Protocol):
    """An import looks at all photos first, then copies the good ones: two tasks."""

    def begin(self, task: str, photos: int) -> None:
        """`task` says what is done to so many photos: "looked at", "copied" or "moved"."""

    def advance(self, written_bytes: int) -> None:
        """That was done to one more; so many bytes of it were written."""

    def end(self) -> None:
        """The task is over, whether it is done or not."""


class LoggingImportReporter:
    """Sends it to the log."""

    def begin(self, task: str, photos: int) -> None:
        logger.info("%d photos to be %s", photos, task)

    def advance(self, written_bytes: int) -> None:
        logger.debug("%d bytes written", written_bytes)

    def end(self) -> None:
        logger.debug("end")
