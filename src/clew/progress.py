"""What long work reports while it runs: small events, one protocol, and a logger.

A reporter is anything that can be called with an event. Each package defines the events that are
its own beside the work they tell of; those that all share stand here.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger("clew")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. `level` is that of the log."""

    @property
    def level(self) -> int:
        return logging.INFO


class Reporter(Protocol):
    """Receives events, from the thread that does the work."""

    def __call__(self, event: Event, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """A sentence."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class WorkStarted(Event):
    """Many things of one kind are about to be made: `done` of `planned` are there already.

    `noun` is what they are called ("traces"), `verb` what is done to them ("copied"), where that
    is not plain. `estimate` says what is to come, as a sentence; `waiting` what happens before
    the first is done.
    """

    noun: str
    planned: int
    done: int = 0
    verb: str = ""
    estimate: str = ""
    waiting: str = ""

    def __str__(self) -> str:
        return f"{self.done:,} of {self.planned:,} {self.noun} done. {self.estimate}".strip()


@dataclass(frozen=True, kw_only=True)
class WorkAdvanced(Event):
    """So many more are done. `tokens` and `written_bytes` are of these, 0 where not counted."""

    count: int = 1
    written_bytes: int = 0
    tokens: int = 0

    @property
    def level(self) -> int:
        return logging.DEBUG


@dataclass(frozen=True, kw_only=True)
class WorkKept(Event):
    """So many that an earlier run had started to write were kept."""

    count: int
    noun: str

    def __str__(self) -> str:
        return f"{self.count:,} {self.noun} of an interrupted run are kept"


@dataclass(frozen=True, kw_only=True)
class WorkEnded(Event):
    """All are done, or the work stopped early."""

    @property
    def level(self) -> int:
        return logging.DEBUG


def log_event(event: Event, /) -> None:
    """The reporter of a library: everything goes to the log."""
    logger.log(event.level, "%s", event)


def ignore_event(event: Event, /) -> None:  # noqa: ARG001 - a reporter takes every event
    """The reporter of a process that does not write: one voice is enough."""
