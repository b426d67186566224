"""What training on photos reports, besides what decoding them and the engine do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.progress import Event


@dataclass(frozen=True, kw_only=True)
class TrainingChoice:
    """What was chosen without being asked for, or because it was; `reason` is part of a sentence,
    in which settings stand between backticks."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """The photos are decoded and dealt out; training comes next. All that is known before its
    first step: `classes`, `splits` and `excluded` (by kind) are counts of photos."""

    folder: Path
    classes: dict[str, int]
    splits: dict[str, int]
    excluded: dict[str, int]
    other_files: int
    excluded_file: Path
    image_size: TrainingChoice
    place: TrainingChoice
    flip: TrainingChoice
    epochs: TrainingChoice
    network: TrainingChoice
    started_from: Path | None
    new_classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measuring(Event):
    """Training is over; the test photos are looked at."""

    def __str__(self) -> str:
        return "measuring on the test photos"
