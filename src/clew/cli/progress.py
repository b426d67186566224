"""Progress of a capture: a bar on a terminal, a line now and then in a log."""

import time
from datetime import datetime

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from clew.capture.plan import Estimate
from clew.capture.reporter import Progress as Step
from clew.cli.formats import bytes_text, duration_text

_LOG_EVERY_SECONDS = 30.0


class ConsoleReporter:
    """Shows what a capture tells, as fits the place that it is shown in."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._planned = self._before = 0
        self._traces = self._tokens = self._bytes = self._said = 0
        self._started = self._last_line = 0.0

    def say(self, message: str) -> None:
        text = message if self._console.is_terminal else _stamp(message)
        self._console.print(text, style="dim", markup=False)

    def begin(self, done: int, planned: int, estimate: Estimate) -> None:
        if done:
            self.say(f"{done:,} of {planned:,} traces are there already")
        self.say(
            f"{estimate.traces:,} traces to make: at most {duration_text(estimate.seconds)}, "
            f"{bytes_text(estimate.bytes)} on disk, about {bytes_text(estimate.memory_bytes)} "
            f"of memory"
        )
        self._planned, self._before = planned, done
        self._started = self._last_line = time.monotonic()
        if self._console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(SpinnerColumn(), BarColumn(), text, console=self._console)
            waiting = f"{self._before:,}/{planned:,} traces, answering the first questions"
            self._task = self._bar.add_task(waiting, total=planned, completed=self._before)
            self._bar.start()

    def keep(self, traces: int) -> None:
        self._before += traces
        self.say(f"{traces:,} traces that an earlier run had begun to write are kept")

    def advance(self, progress: Step) -> None:
        self._traces += progress.traces
        self._tokens += progress.tokens
        self._bytes += progress.bytes
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._before + self._traces, description=self._line()
            )
        elif time.monotonic() - self._last_line >= _LOG_EVERY_SECONDS:
            self._last_line = time.monotonic()
            self._said = self._traces
            self.say(self._line())

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._traces > self._said:
            self.say(self._line())

    def _line(self) -> str:
        seconds = max(1e-9, time.monotonic() - self._started)
        done = self._before + self._traces
        left = (self._planned - done) * seconds / max(1, self._traces)
        return (
            f"{done:,}/{self._planned:,} traces, {self._traces / seconds:,.1f} traces/s, "
            f"{self._tokens / seconds:,.0f} tokens/s, {bytes_text(self._bytes)} written, "
            f"memory {bytes_text(psutil.Process().memory_info().rss)}, "
            f"{duration_text(left)} left"
        )


def _stamp(message: str) -> str:
    return f"{datetime.now():%Y-%m-%d %H:%M:%S}  {message}"
