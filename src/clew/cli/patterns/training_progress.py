"""What a training of patterns tells: what was found, the photos as they are read, the epochs."""

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from clew.cli.errors import with_flags
from clew.cli.formats import plain_text
from clew.cli.progress import RunReporter, TrainingReporter
from clew.wording import bytes_text, counted

if TYPE_CHECKING:
    from clew.engine import HardwarePlan
    from clew.patterns.training import Preparation

_NAMED_CLASSES = 12
_NAME_WIDTH = 13
_PLACES = {"ram": "in memory", "disk": "on disk", "gpu": "on the GPU"}


class PatternsTrainingReporter(TrainingReporter):
    """One line for each thing that was found or decided, then the epochs with their accuracy.

    `is_new` tells whether anything was trained: the result may be there already.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, figure="accuracy", noun="photos")
        self._caching: _Caching | None = None
        self._measuring: Status | None = None
        self._best = 0.0
        self.is_new = False

    def begin_caching(self, done: int, planned: int, max_bytes: int) -> None:
        self._caching = _Caching(self._console, done, planned, max_bytes)

    def advance_caching(self, photos: int, written_bytes: int) -> None:
        if self._caching is not None:
            self._caching.advance(photos, written_bytes)

    def end_caching(self) -> None:
        if self._caching is not None:
            self._caching.end()
            self._caching = None

    def prepared(self, preparation: "Preparation") -> None:
        for name, told in _describe(preparation).items():
            self._tell(name, told)
        self._start_planning()

    def epoch(self, row: dict[str, Any]) -> None:
        super().epoch(row)
        reached = row.get("val_accuracy")
        self._best = max(self._best, reached if reached is not None else 0.0)
        self._validation["best"] = self._best  # for the bar, which shows nothing older

    def measuring(self) -> None:
        self._stop_planning()
        if self._console.is_terminal:
            self._measuring = self._console.status("looking at the test photos")
            self._measuring.start()

    def stop(self) -> None:
        """Take away what moves, before something else is printed."""
        self.end_caching()
        self.end()
        if self._measuring is not None:
            self._measuring.stop()
            self._measuring = None

    def _show_plan(self, plan: "HardwarePlan") -> None:
        self.is_new = True
        self._tell("plan", f"{plan_text(plan)} (each choice with its reason: plan.json)")

    def _tell(self, name: str, told: str) -> None:
        """In one line: a path in it can be copied, however long."""
        self._console.print(
            f"[bold]{name:<{_NAME_WIDTH}}[/bold]{escape(plain_text(with_flags(told)))}"
        )


class _Caching(RunReporter):
    def __init__(self, console: Console, done: int, planned: int, max_bytes: int) -> None:
        super().__init__(console, "photos")
        to_make = (
            f"{counted(planned - done, 'photo')} to read once: at most {bytes_text(max_bytes)} "
            f"on disk"
        )
        self._begin(done, planned, to_make)

    def advance(self, photos: int, written_bytes: int) -> None:
        self._advance(photos, written_bytes)


def plan_text(plan: "HardwarePlan") -> str:
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


def left_out_text(left_out: dict[str, int]) -> str:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in left_out.items())
    return f"{counted(sum(left_out.values()), 'file')} ({counts})"


def _describe(told: "Preparation") -> dict[str, str]:
    size, flip, place = told.image_size, told.flip, told.place
    lines = {
        "photos": f"{sum(told.classes.values()):,} in {_classes_text(told.classes)}",
        "left out": f"{left_out_text(told.left_out)}: each with its reason in {told.left_out_file}",
        "passed over": f"{counted(told.other_files, 'file')} without a photo's ending",
        "splits": ", ".join(f"{count:,} for {split}" for split, count in told.splits.items()),
        "images": f"{size.value} x {size.value} pixels, {size.reason}",
        "kept": f"{_PLACES[place.value]}: {place.reason}",
        "mirrored": f"{'yes' if flip.value else 'no'}: {flip.reason}",
        "starts from": _start_text(told),
        "network": f"{told.network.value}, {told.network.reason}",
        "epochs": f"{told.epochs.value:,}, {told.epochs.reason}",
    }
    empty = {
        "left out": not told.left_out,
        "passed over": not told.other_files,
        "starts from": told.started_from is None,
    }
    return {name: line for name, line in lines.items() if not empty.get(name)}


def _classes_text(classes: dict[str, int]) -> str:
    """All of them with their counts where they are few, else the smallest and the largest."""
    many = counted(len(classes), "class", "classes")
    if len(classes) <= _NAMED_CLASSES:
        return f"{many}: {', '.join(f'{name} ({count:,})' for name, count in classes.items())}"
    few, most = (choose(classes, key=lambda name: classes[name]) for choose in (min, max))
    return f"{many}, from {few} ({classes[few]:,}) to {most} ({classes[most]:,})"


def _start_text(told: "Preparation") -> str:
    new = f"; new: {', '.join(told.new_classes)}" if told.new_classes else ""
    return f"the weights in {shlex.quote(str(told.started_from))}{new}"
