"""What a run of several networks tells while it goes on."""

import logging
from typing import Any, Protocol

from clew.engine import LoggingReporter, Reporter

logger = logging.getLogger(__name__)


class TrainReporter(Reporter, Protocol):
    """Besides what the engine tells of one network: which one it is, and what it reached."""

    def begin_network(self, title: str, *, number: int, count: int) -> None:
        """The `number`-th of `count` networks, from 1, is about to be planned and trained."""

    def end_network(self, run: dict[str, Any], *, is_new: bool) -> None:
        """Its entry of results.json; `is_new` is false for one that was there already."""


class LoggingTrainReporter(LoggingReporter):
    """Sends it all to the log."""

    def begin_network(self, title: str, *, number: int, count: int) -> None:
        logger.info("network %d of %d: %s", number, count, title)

    def end_network(self, run: dict[str, Any], *, is_new: bool) -> None:
        done = "trained" if is_new else "trained already"
        logger.info("%s: %s, test AUROC %s", run["model"], done, run["test_auroc"])
