"""The progress events of a comparison, in addition to those of the engine."""

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from clew.base.progress import Event
from clew.base.texts import duration_text


@dataclass(frozen=True, kw_only=True)
class StoreStarted(Event):
    """Methods are about to be fitted on the `number`-th of `count` stores, from 1.
    `seconds_left` is an estimate for all of them."""

    name: str
    number: int
    count: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        left = self.seconds_left
        about = "" if left is None else f", about {duration_text(left)} left"
        return f"trained on {self.name} ({self.number} of {self.count}{about})"


@dataclass(frozen=True, kw_only=True)
class MethodStarted(Event):
    """The `number`-th of `count` methods, from 1, is about to be fitted."""

    title: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"method {self.number} of {self.count}: {self.title}"


@dataclass(frozen=True, kw_only=True)
class SeedStarted(Event):
    """The method is about to be fitted with the `number`-th of `count` seeds, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"seed {self.number} of {self.count}"


@dataclass(frozen=True, kw_only=True)
class MethodEnded(Event):
    """A method is finished. `row` is its row of results.json; `is_new` is False if an earlier run
    finished it."""

    row: dict[str, Any]
    seconds: float
    is_new: bool

    def __str__(self) -> str:
        done = f"in {self.seconds:.1f} s" if self.is_new else "already done"
        return f"{self.row['method']}: validation AUROC {self.row['val_auroc']:.3f}, {done}"


@dataclass(frozen=True, kw_only=True)
class MethodExcluded(Event):
    """A method is excluded: its data is missing, or it failed."""

    level: ClassVar[int] = logging.WARNING
    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title} is excluded: {self.reason}"
