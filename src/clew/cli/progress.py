"""How far a long run is: on a terminal something that moves, in a log a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.status import Status

from clew.cli.formats import plain_text
from clew.wording import bytes_text, duration_text

if TYPE_CHECKING:
    from clew.engine import HardwarePlan
    from clew.engine import Progress as TrainingStep
    from clew.hallucination.capture.plan import Estimate
    from clew.hallucination.capture.reporter import Progress as Step

_LOG_EVERY_SECONDS = 30.0
# What a line about training takes of a terminal; the bar has the rest.
_TRAINING_WIDTH = 82


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


def say(console: Console, message: str) -> None:
    """A line beside the bar; in a log with its time."""
    text = message if console.is_terminal else f"{datetime.now():%F %T}  {message}"
    console.print(plain_text(text), style="dim", markup=False)


class RunReporter:
    """A run that makes many things of one kind: how many, how fast, how long still."""

    def __init__(self, console: Console, noun: str) -> None:
        self._console, self._noun = console, noun
        self._bar: Progress | None = None
        self._planned = self._before = self._made = self._bytes = self._said = 0
        self._started = self._last_line = 0.0

    def say(self, message: str) -> None:
        say(self._console, message)

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
        written = f"{bytes_text(self._bytes)} written, " if self._bytes else ""
        return (
            f"{done:,}/{self._planned:,} {self._noun}, {self._rates(seconds)}, {written}"
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


class TrainingReporter:
    """Shows what training tells of each network: the plan, then a bar or a line an epoch with the
    figure of validation."""

    def __init__(self, console: Console, *, figure: str = "AUROC", noun: str = "samples") -> None:
        self._console, self._figure, self._noun = console, figure, noun
        self._bar: Progress | None = None
        self._planning: Status | None = None
        self._plan: HardwarePlan | None = None
        self._validation: dict[str, float | None] = {}
        self._last_line = 0.0

    def say(self, message: str) -> None:
        say(self._console, message)

    def begin_network(self, title: str, *, number: int, count: int) -> None:
        above = "\n" if number > 1 else ""
        self._console.print(f"{above}{title} ({number} of {count})", style="bold", markup=False)
        self._start_planning()

    def begin(self, plan: "HardwarePlan", *, epochs: int, steps: int, done_steps: int) -> None:
        self._stop_planning()
        self._show_plan(plan)
        if done_steps:
            self.say(f"going on after step {done_steps:,} of {steps:,}")
        self._epochs, self._steps, self._before = epochs, steps, done_steps
        self._started = self._last_line = time.monotonic()
        self._validation = {}
        if self._console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            bar = BarColumn(bar_width=max(6, min(30, self._console.width - _TRAINING_WIDTH)))
            self._bar = Progress(bar, text, console=self._console)
            self._task = self._bar.add_task(f"{epochs} epochs", total=steps, completed=done_steps)
            self._bar.start()

    def advance(self, progress: "TrainingStep") -> None:
        if self._bar is not None:
            line = self._line(vars(progress), self._validation)
            self._bar.update(self._task, completed=progress.step, description=line)
        elif time.monotonic() - self._last_line >= _LOG_EVERY_SECONDS:
            self._log(vars(progress), {"loss": progress.loss})

    def epoch(self, row: dict[str, Any]) -> None:
        self._validation = {self._figure: row.get(f"val_{self._figure.lower()}")}
        if self._bar is None:
            losses = {"loss": row["train_loss"], "validation loss": row.get("val_loss")}
            self._log(row, losses | self._validation)

    def end(self) -> None:
        self._stop_planning()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def end_network(self, run: dict[str, Any], *, is_new: bool) -> None:
        self._stop_planning()
        auroc = "" if run["test_auroc"] is None else f", test AUROC {run['test_auroc']:.3f}"
        already = "" if is_new else "trained already: "
        self.say(f"{already}best epoch {run['best_epoch']} of {run['epochs_run']}{auroc}")

    def _log(self, told: dict[str, Any], figures: dict[str, float | None]) -> None:
        self._last_line = time.monotonic()
        self.say(self._line(told, figures))

    def _line(self, told: dict[str, Any], figures: dict[str, float | None]) -> str:
        """`told` are the engine's names, of a step or of an epoch."""
        shown = [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]
        seconds = time.monotonic() - self._started
        left = (self._steps - told["step"]) * seconds / max(1, told["step"] - self._before)
        usage = (
            f"{told['samples_per_second']:,.0f} {self._noun}/s",
            f"{told['data_wait_share']:.0%} waiting for data",
            bytes_text(told["memory_bytes"]),
            f"{duration_text(left)} left",
        )
        return ", ".join([f"epoch {told['epoch']}/{self._epochs}", *shown, *usage])

    def _show_plan(self, plan: "HardwarePlan") -> None:
        from clew.cli.plan import plan_table

        table = plan_table(plan, self._plan)
        if self._plan is not None:
            but = ", but for this:" if table.rows else ""
            self.say(f"the plan is that of the network before{but}")
        if table.rows:
            self._console.print(table)
        self._plan = plan

    def _start_planning(self) -> None:
        if self._console.is_terminal:
            self._planning = self._console.status("measuring what is fastest here")
            self._planning.start()

    def _stop_planning(self) -> None:
        if self._planning is not None:
            self._planning.stop()
            self._planning = None
