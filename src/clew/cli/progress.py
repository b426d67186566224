"""Progress of long work: a bar on a terminal, an occasional line in a log."""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from clew.base.progress import (
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkersAdvanced,
    WorkKept,
    WorkStarted,
    WorkUnderway,
)
from clew.base.terminal import as_text
from clew.base.texts import bytes_text, counted, duration_text, for_terminal

_LOG_EVERY_SECONDS = 30.0
# How long an earlier estimate of the time left counts.
_SMOOTHED_SECONDS = 20.0
# A bar is drawn ten times a second; its text is not needed more often.
_DRAW_EVERY_SECONDS = 0.1
_NARROW, _BAR_WIDTH, _NARROW_BAR_WIDTH = 120, 40, 15
# What a narrow terminal omits, the first first: the bar and the time left matter more.
_OMITTED = ("memory", "written", "tokens", "in progress", "workers")
# With more workers than this, only the slowest and the fastest are shown.
_MOST_WORKERS = 8


def say(console: Console, message: str) -> None:
    """Print a line above the bar; in a log, with the time."""
    text = message if console.is_terminal else f"{datetime.now():%F %T}  {message}"
    console.print(for_terminal(text), style="dim")


def working(console: Console, text: str) -> AbstractContextManager[object]:
    """Say what takes a while and cannot say how far it is."""
    if console.is_terminal:
        return console.status(as_text(text))
    say(console, text)
    return nullcontext()


def is_line_due(last_line: float) -> bool:
    """Whether it is time for another line in a log; `last_line` is the time of the last one."""
    return time.monotonic() - last_line >= _LOG_EVERY_SECONDS


class TimeLeft:
    """Seconds left, as a text that does not jump: an estimate counts more the longer the last one
    is ago, and the more items were `done` since."""

    def __init__(self) -> None:
        self._left, self._at, self._done = 0.0, -math.inf, 0.0

    def tell(self, left: float, done: float, now: float | None = None) -> str:
        now = time.monotonic() if now is None else now
        seconds, self._at = now - self._at, now
        counted_on = self._left - seconds if seconds < math.inf else left
        earlier = min(1.0, self._done / max(1e-9, done))
        kept = math.exp(-seconds / _SMOOTHED_SECONDS) * earlier**2
        self._left, self._done = left + (counted_on - left) * kept, done
        return f"{duration_text(max(0.0, self._left))} left"


class StepBar:
    """A bar for a step of preparation, which disappears when it ends. In a log, its name, and
    every half minute how far it is."""

    def __init__(self, console: Console, started: StepStarted) -> None:
        self._console, self._started, self._done = console, started, 0
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if not console.is_terminal:
            say(console, started.name)
            return
        columns = (SpinnerColumn(), BarColumn(bar_width=_NARROW_BAR_WIDTH))
        text, elapsed = TextColumn("{task.description}"), TimeElapsedColumn()
        self._bar = Progress(*columns, text, elapsed, console=console, transient=True)
        self._task = self._bar.add_task(started.name, total=started.parts or None)
        self._bar.start()

    def show_WorkAdvanced(self, event: WorkAdvanced) -> None:
        self._done += event.count
        if self._bar is not None:
            self._bar.update(self._task, completed=min(self._done, self._started.parts))
        elif self._started.parts and is_line_due(self._last_line):
            self._last_line = time.monotonic()
            share = min(1.0, self._done / self._started.parts)
            say(self._console, f"{self._started.name}: {share:.0%}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    stop = end


class WorkBar:
    """A progress bar over many items, with their count, rate and time left."""

    def __init__(self, console: Console, started: WorkStarted) -> None:
        self._console, self._noun = console, started.noun
        self._verb = f" {started.verb}" if started.verb else ""
        self._planned, self._before = started.planned, started.done
        self._made = self._bytes = self._tokens = self._said = 0
        # Items that were worked on together before those that are now, and how many these are.
        self._passed = self._together = 0
        self._share = 0.0
        self._left = TimeLeft()
        self._workers: WorkersAdvanced | None = None
        if started.done:
            say(console, f"{started.done:,} of {started.planned:,} {self._noun} already done")
        if started.estimate:
            say(console, started.estimate)
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = self._start_bar(started)

    def show_WorkAdvanced(self, event: WorkAdvanced) -> None:
        self._made += event.count
        self._bytes += event.written_bytes
        self._tokens += event.tokens
        self._refresh()

    def show_OthersAdvanced(self, event: OthersAdvanced) -> None:
        self.show_WorkAdvanced(WorkAdvanced(count=event.count))

    def show_WorkUnderway(self, event: WorkUnderway) -> None:
        """Items may be reported as done only later, once they are written."""
        self._together, self._share = event.count, event.share
        if event.share >= 1:
            self._passed, self._together = self._passed + event.count, 0
        self._refresh()

    def show_WorkersAdvanced(self, event: WorkersAdvanced) -> None:
        """What the workers of a cluster do."""
        self._workers = event
        self._refresh()

    def _refresh(self) -> None:
        if self._bar is not None:
            if time.monotonic() - self._last_line >= _DRAW_EVERY_SECONDS:
                self._draw(self._bar)
        elif is_line_due(self._last_line):
            self._last_line, self._said = time.monotonic(), self._made
            say(self._console, self._line())

    @property
    def _reached(self) -> float:
        """Items done in this run, the finished share of those in work included."""
        underway = self._workers.underway if self._workers else 0.0
        return max(self._made + underway, self._passed + self._together * self._share)

    def keep(self, event: WorkKept) -> None:
        self._before += event.count

    def end(self) -> None:
        """Shows the final figures."""
        if self._bar is not None and self._made:
            self._draw(self._bar)
        elif self._made > self._said:
            say(self._console, self._line())
        self.stop()

    def stop(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start_bar(self, started: WorkStarted) -> Progress:
        text = TextColumn("{task.description}")
        column = BarColumn(bar_width=self._bar_width)
        bar = Progress(SpinnerColumn(), column, text, console=self._console)
        waiting = f", {started.waiting}" if started.waiting else ""
        first = f"{started.done:,}/{started.planned:,} {self._noun}{waiting}"
        self._task = bar.add_task(first, total=started.planned, completed=started.done)
        bar.start()
        return bar

    def _draw(self, bar: Progress) -> None:
        self._last_line = time.monotonic()
        line = self._line(self._console.width - self._bar_width - len("|  "))
        bar.update(self._task, completed=self._before + self._reached, description=line)

    @property
    def _bar_width(self) -> int:
        return _BAR_WIDTH if self._console.width >= _NARROW else _NARROW_BAR_WIDTH

    def _line(self, room: int | None = None) -> str:
        """The figures; those that do not fit into `room` columns are omitted."""
        parts = self._figures()
        for name in _OMITTED:
            if room is None or len(", ".join(parts.values())) <= room:
                break
            parts.pop(name, None)
        return ", ".join(parts.values())

    def _figures(self) -> dict[str, str]:
        seconds = max(1e-9, time.monotonic() - self._started)
        done, reached = self._before + self._made, self._reached
        left = (self._planned - self._before - reached) * seconds / max(0.1, reached)
        in_progress = f"{self._together:,} in progress: {self._share:.0%}" if self._together else ""
        parts = {
            "done": f"{done:,}/{self._planned:,} {self._noun}{self._verb}",
            "in progress": in_progress,
            "rate": f"{reached / seconds:,.1f} {self._noun}/s",
            "tokens": f"{self._tokens / seconds:,.0f} tokens/s" if self._tokens else "",
            "written": f"{bytes_text(self._bytes)} written" if self._bytes else "",
            "memory": f"memory {bytes_text(psutil.Process().memory_info().rss)}",
            "workers": _describe_workers(self._workers),
            "left": self._left.tell(left, reached),
        }
        if self._workers is not None:
            parts["memory"] = ""  # theirs is elsewhere
        return {name: text for name, text in parts.items() if text}


def _describe_workers(event: WorkersAdvanced | None) -> str:
    """ "2 workers: 3.1/s, loading smollm2" """
    if event is None:
        return ""
    name, rates = counted(len(event.workers), "worker"), [w.per_second for w in event.workers]
    if len(rates) > _MOST_WORKERS:
        return f"{name}: {min(rates):,.1f}/s to {max(rates):,.1f}/s"
    each = (worker.step or f"{worker.per_second:,.1f}/s" for worker in event.workers)
    return f"{name}: {', '.join(each)}"
