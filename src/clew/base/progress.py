"""What long work reports while it runs: small events, one protocol, and a logger.

A reporter is anything that can be called with an event. Each package defines its own events beside
the work they describe; the shared ones are here.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Protocol

from clew.base.garbage import collect_later

logger = logging.getLogger("clew")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base class of progress events. `str(event)` is its line in the log, at level `level`."""

    level: ClassVar[int] = logging.INFO


class Reporter(Protocol):
    """Receives events, one at a time, from the thread that does the work."""

    def __call__(self, event: Event, /) -> None: ...


@dataclass(frozen=True)
class Note(Event):
    """A message in one sentence. Settings in it are in backticks, as in errors."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class WorkStarted(Event):
    """Work on many items of one kind starts; `done` of `planned` already exist.

    `noun` is what they are called ("traces"), `verb` what is done to them ("copied") where that is
    not obvious. `estimate` is a sentence about the rest of the work; `waiting` says what happens
    before the first one is done.
    """

    noun: str
    planned: int
    done: int = 0
    verb: str = ""
    estimate: str = ""
    waiting: str = ""

    def __str__(self) -> str:
        done = f"{self.done:,} of {self.planned:,} {self.noun} done"
        return f"{done}; {self.estimate}" if self.estimate else done


@dataclass(frozen=True, kw_only=True)
class WorkAdvanced(Event):
    """`count` more items are done, with `tokens` tokens and `written_bytes` bytes (0 if not
    counted)."""

    level: ClassVar[int] = logging.DEBUG
    count: int = 1
    written_bytes: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class OthersAdvanced(Event):
    """`count` more items were done by other workers."""

    level: ClassVar[int] = logging.DEBUG
    count: int


@dataclass(frozen=True, kw_only=True)
class WorkerProgress:
    """One of several workers: how many items it has done, how fast, and the step of preparation
    that it is at, if any."""

    number: int
    host: str
    count: int
    per_second: float
    step: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkersAdvanced(Event):
    """What each worker has done. `underway` counts the items that they work on, by the share that
    is done."""

    level: ClassVar[int] = logging.DEBUG
    workers: tuple[WorkerProgress, ...]
    underway: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkUnderway(Event):
    """Of the next `count` items, which are worked on together, a `share` from 0 to 1 is done."""

    level: ClassVar[int] = logging.DEBUG
    count: int
    share: float


@dataclass(frozen=True, kw_only=True)
class StepStarted(Event):
    """A short step before the work starts, such as loading a model. Its parts are counted by
    `WorkAdvanced`; `parts` 0: it has none that could be counted. It ends with `WorkEnded`."""

    name: str
    parts: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class WorkKept(Event):
    """`count` items that an interrupted run had not finished writing were taken over."""

    noun: str
    count: int

    def __str__(self) -> str:
        return f"{self.noun} recovered from an interrupted run: {self.count:,}"


@dataclass(frozen=True, kw_only=True)
class WorkEnded(Event):
    """The work ended: all items are done, or it stopped early."""

    level: ClassVar[int] = logging.DEBUG


class Meter:
    """Counts the small units (tokens) of `count` items that are worked on together, and reports
    them as a share. There may be fewer `units` than expected."""

    def __init__(self, reporter: Reporter, *, count: int, units: int) -> None:
        self._reporter, self._count, self._units = reporter, count, units
        self._done = 0

    def add(self, units: int) -> None:
        self._done += units
        self._report(min(self._done / max(1, self._units), 0.99))

    def finish(self) -> None:
        self._report(1.0)

    def _report(self, share: float) -> None:
        self._reporter(WorkUnderway(count=self._count, share=share))


@contextmanager
def report_work(reporter: Reporter, started: WorkStarted | StepStarted) -> Iterator[None]:
    """Reports the start, and the end however the work ends."""
    reporter(started)
    try:
        yield
    finally:
        reporter(WorkEnded())


def load_modules(reporter: Reporter, *modules: str) -> None:
    """Import what takes seconds, on a busy machine a minute, and say so: after all that can be
    checked without it."""
    slow = {"torch", *modules} & {"torch", "transformers"}
    started = StepStarted(name="loading PyTorch")
    shown = nullcontext() if slow <= {*sys.modules} else report_work(reporter, started)
    with shown, collect_later():
        for module in modules:
            import_module(module)


def report_to_all(*reporters: Reporter) -> Reporter:
    """One reporter that passes every event on to each of them, in their order."""

    def report(event: Event, /) -> None:
        for reporter in reporters:
            reporter(event)

    return report


def log_event(event: Event, /) -> None:
    """The library's default reporter: everything goes to the log."""
    logger.log(event.level, "%s", event)


def ignore_event(event: Event, /) -> None:
    """The reporter of a process that does not write, so that events are reported once."""
