"""How far a comparison is: which method, what it reached, and the network in training."""

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from clew.cli.formats import plain_text
from clew.cli.progress import say
from clew.wording import counted, duration_text

if TYPE_CHECKING:
    from clew.engine import HardwarePlan, Progress

_LOG_EVERY_SECONDS = 30.0


class ComparisonReporter:
    """A line a method; beneath it, on a terminal, what goes on now, in a log now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._method = self._seed = ""
        self._auroc: float | None = None
        self._last_line = 0.0

    def say(self, message: str) -> None:
        say(self._console, message)

    def begin_store(self, name: str, *, number: int, count: int) -> None:
        text = f"trained on {name} ({number} of {count})"
        self._console.print(plain_text(text), style="bold", markup=False)

    def begin_method(self, title: str, *, number: int, count: int) -> None:
        self._method, self._seed = f"{number}/{count} {title}", ""
        self._last_line = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(escape(plain_text(self._method)))
            self._status.start()

    def begin_seed(self, *, number: int, count: int) -> None:
        self._seed = f", seed {number} of {count}" if count > 1 else ""
        self._show("")

    def begin(self, plan: "HardwarePlan", *, epochs: int, steps: int, done_steps: int) -> None:
        self._epochs, self._steps, self._before = epochs, steps, done_steps
        self._started, self._auroc = time.monotonic(), None
        after = f", going on after step {done_steps:,}" if done_steps else ""
        self._show(f": {counted(epochs, 'epoch')} on {plan.device}{after}")

    def advance(self, progress: "Progress") -> None:
        seconds = time.monotonic() - self._started
        done = max(1, progress.step - self._before)
        left = duration_text((self._steps - progress.step) * seconds / done)
        figures = {"loss": progress.loss, "AUROC": self._auroc}
        shown = [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]
        parts = [f"epoch {progress.epoch}/{self._epochs}", *shown, f"{left} left"]
        self._show(f": {', '.join(parts)}")

    def epoch(self, row: dict[str, Any]) -> None:
        self._auroc = row.get("val_auroc")

    def end(self) -> None:
        """The method may have more seeds."""

    def end_method(self, row: dict[str, Any], *, seconds: float, is_new: bool) -> None:
        took = f"in {_short(seconds)}" if is_new else "there already"
        low, high = row["test_auroc_ci"]
        self._finish(
            f"validation AUROC {row['val_auroc']:.3f}, "
            f"test {row['test_auroc']:.3f} [{low:.3f}, {high:.3f}], {took}"
        )

    def leave_out(self, title: str, reason: str) -> None:  # noqa: ARG002 - the line names it
        self._finish(f"left out: {reason}")

    def stop(self) -> None:
        """Take away what moves, before something else is printed."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _finish(self, reached: str) -> None:
        self.stop()
        self.say(f"{self._method}: {reached}")

    def _show(self, state: str) -> None:
        text = f"{self._method}{self._seed}{state}"
        if self._status is not None:
            self._status.update(escape(plain_text(text)))
        elif time.monotonic() - self._last_line >= _LOG_EVERY_SECONDS:
            self._last_line = time.monotonic()
            self.say(text)


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)
