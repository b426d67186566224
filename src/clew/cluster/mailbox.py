"""What a worker has to report, collected between two looks of the process that watches it."""

import threading
from dataclasses import dataclass

from clew.base.progress import (
    Event,
    Note,
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkKept,
    WorkStarted,
    WorkUnderway,
)

_INFO = 20


@dataclass(frozen=True, kw_only=True)
class Report:
    """A worker's news since the last report, and what it is doing now. `underway` counts the items
    in work, by the share that is done."""

    advanced: WorkAdvanced
    started: WorkStarted | None
    kept: WorkKept | None
    notes: tuple[str, ...]
    step: str
    underway: float


class Mailbox:
    """The reporter of a worker. Many small events become one report."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._started: WorkStarted | None = None
        self._step, self._underway = "", 0.0
        self._clear()

    def _clear(self) -> None:
        self._count = self._bytes = self._tokens = 0
        self._kept: WorkKept | None = None
        self._notes: list[str] = []

    def __call__(self, event: Event, /) -> None:
        with self._guard:
            self._add(event)

    def collect(self) -> Report:
        """The news, which are then no news any more."""
        with self._guard:
            report = Report(
                advanced=WorkAdvanced(
                    count=self._count, written_bytes=self._bytes, tokens=self._tokens
                ),
                started=self._started,
                kept=self._kept,
                notes=tuple(self._notes),
                step=self._step,
                underway=self._underway,
            )
            self._clear()
            return report

    def _add(self, event: Event) -> None:
        match event:
            case WorkAdvanced() if self._started is not None:
                self._count += event.count
                self._bytes += event.written_bytes
                self._tokens += event.tokens
                self._underway = max(0.0, self._underway - event.count)
            case WorkUnderway():
                self._underway = event.count * event.share
            case WorkKept():
                before = self._kept.count if self._kept else 0
                self._kept = WorkKept(noun=event.noun, count=before + event.count)
            case WorkStarted():
                self._started, self._step = event, ""
            case StepStarted():
                self._step = event.name
            case WorkEnded():
                self._step, self._underway = "", 0.0
            case WorkAdvanced() | OthersAdvanced():
                pass  # parts of a step; others report for themselves
            case Note() | Event():
                if event.level >= _INFO:
                    self._notes.append(str(event))
