"""Shows the events of all commands: bars on a terminal, an occasional line in a log."""

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.status import Status
from rich.text import Text

from clew.base.progress import (
    Event,
    StepStarted,
    WorkEnded,
    WorkKept,
    WorkStarted,
)
from clew.base.terminal import as_text
from clew.base.texts import bytes_text, counted, duration_text, for_shell, for_terminal
from clew.cli.errors import with_flags
from clew.cli.printing import plan_table
from clew.cli.progress import StepBar, TimeLeft, WorkBar, is_line_due, say

if TYPE_CHECKING:
    from clew.engine import (
        EpochEnded,
        HardwarePlan,
        TrainingProgress,
        TrainingStarted,
    )
    from clew.hallucination.comparison.fitting import (
        MethodEnded,
        MethodExcluded,
        MethodStarted,
        SeedStarted,
        StoreStarted,
    )
    from clew.hallucination.detectors.training.settings import NetworkEnded, NetworkStarted
    from clew.patterns.training import Measuring, Prepared


# Shown by their command: the address of a service, and metrics, which are for experiment trackers.
_RESULTS = ("ServiceReady", "ModelMeasured")


class Renderer:
    """The reporter of the command line. Use it in a `with` block, which removes the bars however
    the work ends.

    An event goes to the method named after its type, as with `ast.NodeVisitor`, of the first
    display that has one: importing the types would load torch for commands that do not need it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._work: WorkBar | StepBar | None = None
        self._network = TrainingBar(console)
        self._method: MethodLine | None = None

    def __call__(self, event: Event, /) -> None:
        name = type(event).__name__
        for display in (self, self._method, self._work, self._network):
            show = getattr(display, f"show_{name}", None)
            if show is not None:
                show(event)
                return
        if event.level >= logging.INFO and name not in _RESULTS:
            self.say(str(event))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for display in (self._work, self._method, self._network):
            if display is not None:
                display.stop()

    @property
    def has_trained(self) -> bool:
        """Whether a network was trained in this run; if not, the result is from an earlier one."""
        return self._network.has_trained

    def say(self, message: str) -> None:
        say(self._console, with_flags(message))

    def show_WorkStarted(self, event: WorkStarted) -> None:
        self.show_WorkEnded()
        self._work = WorkBar(self._console, event) if event.planned else None

    def show_StepStarted(self, event: StepStarted) -> None:
        self.show_WorkEnded()
        self._work = StepBar(self._console, event)

    def show_WorkKept(self, event: WorkKept) -> None:
        self.say(str(event))
        if isinstance(self._work, WorkBar):
            self._work.keep(event)

    def show_WorkEnded(self, _: WorkEnded | None = None) -> None:
        """Also of a step inside of which other work starts."""
        if self._work is not None:
            self._work.end()
            self._work = None

    def show_StoreStarted(self, event: "StoreStarted") -> None:
        self._console.print(for_terminal(str(event)), style="bold")

    def show_MethodStarted(self, event: "MethodStarted") -> None:
        self._method = MethodLine(self._console, event)


# Width of a line about training; the bar has the rest of the terminal.
_LINE_WIDTH = 82
_NAME_WIDTH = 13
# Epochs of small sets take less: a log has a line for the first, the last, and one per second.
_EPOCH_SECONDS = 1.0


class TrainingBar:
    """Shows the plan of each network, then a bar, or one line per epoch, with the validation
    metric. Photo classifiers, announced by `Prepared`, show their accuracy.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._figure, self._noun, self._is_of_photos = "AUROC", "samples", False
        self._bar: Progress | None = None
        self._waiting: Status | None = None
        self._plan: HardwarePlan | None = None
        self._validation: dict[str, float | None] = {}
        self._best = 0.0

    @property
    def has_trained(self) -> bool:
        """Whether anything was trained in this run; if not, the result is from an earlier one."""
        return self._plan is not None

    def show_NetworkStarted(self, event: "NetworkStarted") -> None:
        above = "\n" if event.number > 1 else ""
        title = f"{above}{event.title} ({event.number} of {event.count})"
        self._console.print(title, style="bold")
        self._wait("finding the fastest settings")

    def show_Prepared(self, event: "Prepared") -> None:
        self._figure, self._noun, self._is_of_photos = "accuracy", "photos", True
        for name, told in describe_preparation(event).items():
            self._tell(name, told)
        self._wait("finding the fastest settings")

    def show_TrainingStarted(self, event: "TrainingStarted") -> None:
        self.stop()
        self._show_plan(event.plan)
        if self._is_of_photos and event.expected_seconds is not None:
            expected = duration_text(event.expected_seconds)
            self._tell("expected", f"about {expected} for {event.steps:,} steps")
        if event.done_steps:
            say(self._console, f"resuming after step {event.done_steps:,} of {event.steps:,}")
        self._run, self._validation = event, {}
        self._started = self._last_line = time.monotonic()
        self._last_epoch, self._left = -math.inf, TimeLeft()
        if self._console.is_terminal:
            text = TextColumn("{task.description}")
            bar = BarColumn(bar_width=max(6, min(30, self._console.width - _LINE_WIDTH)))
            self._bar = Progress(bar, text, console=self._console)
            self._task = self._bar.add_task(
                counted(event.epochs, "epoch"), total=event.steps, completed=event.done_steps
            )
            self._bar.start()

    def show_TrainingProgress(self, event: "TrainingProgress") -> None:
        if self._bar is not None:
            line = self._line(vars(event), self._validation)
            self._bar.update(self._task, completed=event.step, description=line)
        elif is_line_due(self._last_line):
            self._log(vars(event), {"loss": event.loss})

    def show_EpochEnded(self, event: "EpochEnded") -> None:
        row, reached = event.row, event.row.get(f"val_{self._figure.lower()}")
        self._validation = {self._figure: reached}
        is_last = row["epoch"] >= self._run.epochs
        if self._bar is None and (is_last or time.monotonic() - self._last_epoch >= _EPOCH_SECONDS):
            self._last_epoch = time.monotonic()
            losses = {"loss": row["train_loss"], "validation loss": row.get("val_loss")}
            self._log(row, losses | self._validation)
        if self._is_of_photos:
            self._best = max(self._best, reached or 0.0)
            self._validation["best"] = self._best  # for the bar, which shows only the latest

    def show_NetworkEnded(self, event: "NetworkEnded") -> None:
        self.stop()
        run = event.run
        auroc = "" if run["test_auroc"] is None else f", test AUROC {run['test_auroc']:.3f}"
        already = "" if event.is_new else "already trained: "
        best = f"best epoch {run['best_epoch']} of {run['epochs_run']}"
        say(self._console, f"{already}{best}{auroc}")

    def show_Measuring(self, _: "Measuring") -> None:
        self.stop()
        self._wait("evaluating on the test photos")

    def stop(self, _: object = None) -> None:
        """Removes the bar; the line of a method stays, as it may have more seeds."""
        for display in (self._waiting, self._bar):
            if display is not None:
                display.stop()
        self._waiting = self._bar = None

    show_TrainingEnded = stop

    def _wait(self, text: str) -> None:
        if self._console.is_terminal:
            self._waiting = self._console.status(as_text(text))
            self._waiting.start()
        else:
            say(self._console, text)

    def _log(self, values: dict[str, Any], figures: dict[str, float | None]) -> None:
        self._last_line = time.monotonic()
        say(self._console, self._line(values, figures))

    def _line(self, values: dict[str, Any], figures: dict[str, float | None]) -> str:
        """One line about a step or an epoch; `values` are its metrics under the engine's names."""
        parts = (
            f"epoch {values['epoch']}/{self._run.epochs}",
            *_figures(figures),
            f"{values['samples_per_second']:,.0f} {self._noun}/s",
            _tell_left(self._left, self._run, self._started, values["step"]),
            # Last, as a narrow terminal cuts the line off.
            f"{values['data_wait_share']:.0%} waiting for data",
            bytes_text(values["memory_bytes"]),
        )
        return ", ".join(parts)

    def _show_plan(self, plan: "HardwarePlan") -> None:
        before, self._plan = self._plan, plan
        if self._is_of_photos:
            self._tell("plan", f"{describe_plan(plan)} (reasons in plan.json)")
            return
        table = plan_table(plan, before)
        if before is not None:
            but = ", except:" if table.rows else ""
            say(self._console, f"same plan as the previous network{but}")
        if table.rows:
            self._console.print(table)

    def _tell(self, name: str, told: str) -> None:
        """Print one line, so that a path can be copied."""
        text = for_terminal(with_flags(told))
        self._console.print(Text.assemble((f"{name:<{_NAME_WIDTH}}", "bold"), text))


class MethodLine:
    """One line per method of a comparison. Until it is finished: the current step on a terminal, an
    occasional line in a log."""

    def __init__(self, console: Console, event: "MethodStarted") -> None:
        self._console = console
        self._title, self._seed = f"{event.number}/{event.count} {event.title}", ""
        self._auroc: float | None = None
        self._last_line = time.monotonic()
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status(as_text(self._title))
            self._status.start()

    def show_SeedStarted(self, event: "SeedStarted") -> None:
        self._seed = f", seed {event.number} of {event.count}" if event.count > 1 else ""
        self._show("")

    def show_TrainingStarted(self, event: "TrainingStarted") -> None:
        self._run, self._started, self._auroc = event, time.monotonic(), None
        self._left = TimeLeft()
        after = f", resuming after step {event.done_steps:,}" if event.done_steps else ""
        self._show(f": {counted(event.epochs, 'epoch')} on {event.plan.device}{after}")

    def show_TrainingProgress(self, event: "TrainingProgress") -> None:
        parts = (
            f"epoch {event.epoch}/{self._run.epochs}",
            *_figures({"loss": event.loss, "AUROC": self._auroc}),
            _tell_left(self._left, self._run, self._started, event.step),
        )
        self._show(f": {', '.join(parts)}")

    def show_EpochEnded(self, event: "EpochEnded") -> None:
        self._auroc = event.row.get("val_auroc")

    def show_MethodExcluded(self, event: "MethodExcluded") -> None:
        self._finish(f"excluded: {with_flags(event.reason)}")

    def show_MethodEnded(self, event: "MethodEnded") -> None:
        self._finish(event.reached)

    def stop(self) -> None:
        """Removes the bar."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _finish(self, reached: str) -> None:
        self.stop()
        say(self._console, f"{self._title}: {reached}")

    def _show(self, state: str) -> None:
        text = f"{self._title}{self._seed}{state}"
        if self._status is not None:
            self._status.update(as_text(text))
        elif is_line_due(self._last_line):
            self._last_line = time.monotonic()
            say(self._console, text)


def _figures(figures: dict[str, float | None]) -> list[str]:
    return [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]


def _tell_left(left: TimeLeft, run: "TrainingStarted", started: float, step: int) -> str:
    seconds, done = time.monotonic() - started, step - run.done_steps
    return left.tell((run.steps - step) * seconds / max(1, done), done)


_NAMED_CLASSES = 12
_PLACES = {"ram": "in memory", "disk": "on disk", "gpu": "on the GPU"}


def describe_plan(plan: "HardwarePlan") -> str:
    """The plan in one line."""
    ways = {
        "CUDA graph": plan.cuda_graph,
        "torch.compile": plan.compile,
        "channels_last": plan.channels_last,
        "gradient checkpointing": plan.gradient_checkpointing,
    }
    processes = f"{plan.processes} processes" if plan.processes > 1 else ""
    batch = f"batch {plan.batch_size:,}"
    batch += f" x {plan.grad_accum}" if plan.grad_accum > 1 else ""
    parts = (plan.device, processes, plan.precision, batch, *(w for w, on in ways.items() if on))
    return ", ".join(part for part in parts if part)


# What is wrong with excluded files, where the kind alone is not grammatical after their number.
_EXCLUDED = {
    "contradiction": "in two classes",
    "format": "of an unsupported format",
    "link": "linked twice",
    "name": "with an invalid name",
    "no class": "outside a class folder",
    "no photos": "without photos",
    "results": "written by clew",
}


def excluded_text(excluded: dict[str, int]) -> str:
    counts = ", ".join(f"{count:,} {_EXCLUDED.get(kind, kind)}" for kind, count in excluded.items())
    return f"{counted(sum(excluded.values()), 'file')} ({counts})"


def describe_preparation(told: "Prepared") -> dict[str, str]:
    """One line per finding or decision, by name."""
    size, flip, place = told.image_size, told.flip, told.place
    lines = {
        "photos": f"{sum(told.classes.values()):,} in {_classes_text(told.classes)}",
        "excluded": f"{excluded_text(told.excluded)}: see {told.excluded_file} for the reasons",
        "ignored": f"{counted(told.other_files, 'file')} without an image extension",
        "splits": ", ".join(f"{count:,} for {split}" for split, count in told.splits.items()),
        "images": f"{size.value} x {size.value} pixels, {size.reason}",
        "cache": f"{_PLACES[place.value]}: {place.reason}",
        "flip": f"{'yes' if flip.value else 'no'}: {flip.reason}",
        "starts from": _start_text(told),
        "network": f"{told.network.value}, {told.network.reason}",
        "training": _method_text(told),
        "epochs": f"{told.epochs.value:,}, {told.epochs.reason}",
    }
    empty = {
        "excluded": not told.excluded,
        "ignored": not told.other_files,
        "starts from": told.started_from is None,
        "epochs": told.method.value is not None,
    }
    return {name: line for name, line in lines.items() if not empty.get(name)}


def _classes_text(classes: dict[str, int]) -> str:
    """All classes with their counts if they are few, otherwise the smallest and the largest."""
    many = counted(len(classes), "class", "classes")
    if len(classes) <= _NAMED_CLASSES:
        return f"{many}: {', '.join(f'{name} ({count:,})' for name, count in classes.items())}"
    few, most = (choose(classes, key=lambda name: classes[name]) for choose in (min, max))
    return f"{many}, from {few} ({classes[few]:,}) to {most} ({classes[most]:,})"


def _method_text(told: "Prepared") -> str:
    seconds = told.method.value
    return told.method.reason + ("" if seconds is None else f"; about {duration_text(seconds)}")


def _start_text(told: "Prepared") -> str:
    new = f"; new classes: {', '.join(told.new_classes)}" if told.new_classes else ""
    return f"the weights in {for_shell([told.started_from])}{new}"
