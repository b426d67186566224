"""What training on photos reports, in addition to the events of decoding and of the engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.base.progress import Event


@dataclass(frozen=True, kw_only=True)
class TrainingChoice:
    """A choice, made automatically or on request; `reason` is part of a sentence, with settings in
    backticks."""

    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """The photos are decoded and split; training comes next.

    Everything known before its first step: `classes`, `splits` and `excluded` (by kind) are counts
    of photos. `method` says how the network is trained; its value is the expected time in seconds,
    or None if the engine measures it first.
    """

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
    method: TrainingChoice
    started_from: Path | None
    new_classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measuring(Event):
    """Training is over; the model is evaluated on the test photos."""

    def __str__(self) -> str:
        return "evaluating on the test photos"
