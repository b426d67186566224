"""What a training of patterns tells while it goes on."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clew.engine import LoggingReporter, Reporter
from clew.patterns.cache import CacheReporter, LoggingCacheReporter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was chosen without being asked for, or because it was; `reason` is part of a sentence,
    in which settings stand between backticks."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """All that is known before the first step. `classes` and `left_out` (by kind) are counts of
    photos, `splits` too."""

    folder: Path
    classes: dict[str, int]
    splits: dict[str, int]
    left_out: dict[str, int]
    other_files: int
    left_out_file: Path
    image_size: Decision
    place: Decision
    flip: Decision
    epochs: Decision
    network: Decision
    started_from: Path | None
    new_classes: tuple[str, ...]


class PatternsReporter(Reporter, CacheReporter, Protocol):
    """Besides what caching and the engine tell: what was found, and what it is trained with."""

    def prepared(self, preparation: Preparation) -> None:
        """The photos are decoded and dealt out; training, or its plan, comes next."""

    def measuring(self) -> None:
        """Training is over; the test photos are looked at."""


class LoggingPatternsReporter(LoggingReporter, LoggingCacheReporter):
    """Sends it all to the log."""

    def prepared(self, preparation: Preparation) -> None:
        logger.info("%s", preparation)

    def measuring(self) -> None:
        logger.info("measuring on the test photos")


class EvaluationReporter(Protocol):
    """How far an evaluation is."""

    def begin(self, photos: int) -> None: ...

    def advance(self, photos: int) -> None: ...

    def end(self) -> None:
        """Also when it ends early."""


class LoggingEvaluationReporter:
    """Sends it to the log."""

    def begin(self, photos: int) -> None:
        logger.info("%d photos to look at", photos)

    def advance(self, photos: int) -> None:
        logger.debug("%d more", photos)

    def end(self) -> None:
        logger.debug("end")
