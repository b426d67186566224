"""How far a long run is: on a terminal something that moves, in a log a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from clew.cli.formats import bytes_text, duration_text, plain_text

if TYPE_CHECKING:
    from clew.capture.plan import Estimate
    from clew.capture.reporter import Progress as Step

_LOG_EVERY_SECONDS = 30.0


@contextmanager
def show_line(console: Console, waiting: str) -> Iterator[Callable[[str, bool], None]]:
    """Gives `show(text, is_last)`: one line that changes on a terminal; in a log a new one now and
    then, and the last."""
    last_line = time.monotonic()

    def log(text: str, is_last: bool) -> None:
        nonlocal last_line
        if is_last or time.monotonic() - last_line >= _LOG_EVERY_SECONDS:
            last_line = time.monotonic()
            console.print(plain_text(text), style="dim", markup=False)

    if not console.is_terminal:
        yield log
        return
    with console.status(waiting) as status:
        yield lambda text, _: status.update(escape(plain_text(text)))


class RunReporter:
    """A run that makes many things of one kind: how many, how fast, how long still."""

    def __init__(self, console: Console, noun: str) -> None:
        self._console, self._noun = console, noun
        self._bar: Progress | None = None
        self._planned = self._before = self._made = self._bytes = self._said = 0
        self._started = self._last_line = 0.0

    def say(self, message: str) -> None:
        text = message if self._console.is_terminal else f"{datetime.now():%F %T}  {message}"
        self._console.print(plain_text(text), style="dim", markup=False)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._made > self._said:
            self.say(self._line())

    def _begin(self, done: int, planned: int, to_make: str, waiting: str = "") -> None:
        if done:
            self.say(f"{done:,} of {planned:,} {self._noun} are there already")
        self.say(to_make)
        self._planned, self._before = planned, done
        self._started = self._last_line = time.monotonic()
        if self._console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(SpinnerColumn(), BarColumn(), text, console=self._console)
            first = f"{done:,}/{planned:,} {self._noun}{waiting}"
            self._task = self._bar.add_task(first, total=planned, completed=done)
            self._bar.start()

    def _advance(self, made: int, written_bytes: int) -> None:
        self._made += made
        self._bytes += written_bytes
        if self._bar is not None:
            done = self._before + self._made
            self._bar.update(self._task, completed=done, description=self._line())
        elif time.monotonic() - self._last_line >= _LOG_EVERY_SECONDS:
            self._last_line, self._said = time.monotonic(), self._made
            self.say(self._line())

    def _line(self) -> str:
        seconds = max(1e-9, time.monotonic() - self._started)
        done = self._before + self._made
        left = (self._planned - done) * seconds / max(1, self._made)
        return (
            f"{done:,}/{self._planned:,} {self._noun}, {self._rates(seconds)}, "
            f"{bytes_text(self._bytes)} written, "
            f"memory {bytes_text(psutil.Process().memory_info().rss)}, {duration_text(left)} left"
        )

    def _rates(self, seconds: float) -> str:
        return f"{self._made / seconds:,.1f} {self._noun}/s"


class CaptureReporter(RunReporter):
    """Shows what a capture tells."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "traces")
        self._tokens = 0

    def begin(self, done: int, planned: int, estimate: "Estimate") -> None:
        to_make = (
            f"{estimate.traces:,} traces to make: at most {duration_text(estimate.seconds)}, "
            f"{bytes_text(estimate.bytes)} on disk, about {bytes_text(estimate.memory_bytes)} "
            f"of memory"
        )
        self._begin(done, planned, to_make, ", answering the first questions")

    def keep(self, traces: int) -> None:
        self._before += traces
        self.say(f"{traces:,} traces that an earlier run had begun to write are kept")

    def advance(self, progress: "Step") -> None:
        self._tokens += progress.tokens
        self._advance(progress.traces, progress.bytes)

    def _rates(self, seconds: float) -> str:
        return f"{super()._rates(seconds)}, {self._tokens / seconds:,.0f} tokens/s"


class PreprocessReporter(RunReporter):
    """Shows what preprocessing tells."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "samples")

    def begin(self, done: int, planned: int, max_bytes: int) -> None:
        to_make = f"{planned - done:,} samples to make: at most {bytes_text(max_bytes)} on disk"
        self._begin(done, planned, to_make)

    def advance(self, samples: int, written_bytes: int) -> None:
        self._advance(samples, written_bytes)
