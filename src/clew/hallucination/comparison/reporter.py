"""What a comparison tells while it goes on."""

import logging
from typing import Any, Protocol

from clew.engine import LoggingReporter, Reporter

logger = logging.getLogger(__name__)


class CompareReporter(Reporter, Protocol):
    """Besides what the engine tells of a network in training: which method runs, and what it
    reached."""

    def begin_store(self, name: str, *, number: int, count: int) -> None:
        """Methods are about to be fitted on the `number`-th of `count` stores, from 1."""

    def begin_method(self, title: str, *, number: int, count: int) -> None:
        """The `number`-th of `count` methods, from 1, is about to be fitted."""

    def begin_seed(self, *, number: int, count: int) -> None:
        """Its `number`-th of `count` seeds, from 1."""

    def end_method(self, row: dict[str, Any], *, seconds: float, is_new: bool) -> None:
        """Its row of results.json; `is_new` is false for one that was there already."""

    def leave_out(self, title: str, reason: str) -> None: ...


class LoggingCompareReporter(LoggingReporter):
    """Sends it all to the log."""

    def begin_store(self, name: str, *, number: int, count: int) -> None:
        logger.info("trained on %s (%d of %d)", name, number, count)

    def begin_method(self, title: str, *, number: int, count: int) -> None:
        logger.info("method %d of %d: %s", number, count, title)

    def begin_seed(self, *, number: int, count: int) -> None:
        logger.info("seed %d of %d", number, count)

    def end_method(self, row: dict[str, Any], *, seconds: float, is_new: bool) -> None:
        done = f"in {seconds:.1f} s" if is_new else "there already"
        logger.info("%s: validation AUROC %.3f, %s", row["method"], row["val_auroc"], done)

    def leave_out(self, title: str, reason: str) -> None:
        logger.warning("%s is left out: %s", title, reason)
