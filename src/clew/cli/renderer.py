"""Shows the events of all commands: bars on a terminal, an occasional line in a log."""

import logging
from typing import TYPE_CHECKING, Self

from rich.console import Console

from clew.base.progress import (
    Event,
    Note,
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkersAdvanced,
    WorkKept,
    WorkStarted,
    WorkUnderway,
)
from clew.base.texts import for_terminal
from clew.cli.errors import with_flags
from clew.cli.progress import StepBar, WorkBar, say
from clew.cli.training_progress import MethodLine, TrainingBar

if TYPE_CHECKING:
    from clew.base.cores import CoresBusy
    from clew.base.cpu import ThreadsChosen
    from clew.engine import (
        EpochEnded,
        ModelMeasured,
        TrainingEnded,
        TrainingProgress,
        TrainingStarted,
    )
    from clew.hallucination.comparison.events import (
        MethodEnded,
        MethodExcluded,
        MethodStarted,
        SeedStarted,
        StoreStarted,
    )
    from clew.hallucination.detectors.training import NetworkEnded, NetworkStarted
    from clew.pages.api.running import ServiceReady
    from clew.patterns.training import Measuring, Prepared


class Renderer:
    """The reporter of the command line. Use it in a `with` block, which removes the bars however
    the work ends.

    An event goes to the method named after its type, as with `ast.NodeVisitor`: importing the
    types would load torch for commands that do not need it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._work: WorkBar | StepBar | None = None
        self._network = TrainingBar(console)
        self._method: MethodLine | None = None

    def __call__(self, event: Event, /) -> None:
        getattr(self, f"show_{type(event).__name__}", self.show_Event)(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._work is not None:
            self._work.stop()
        if self._method is not None:
            self._method.stop()
        self._network.stop()

    @property
    def has_trained(self) -> bool:
        """Whether a network was trained in this run; if not, the result is from an earlier one."""
        return self._network.has_trained

    def say(self, message: str) -> None:
        say(self._console, with_flags(message))

    def show_Event(self, event: Event) -> None:
        """An event without a method of its own."""
        if event.level >= logging.INFO:
            self.say(str(event))

    def show_Note(self, event: Note) -> None:
        self.say(event.text)

    def show_WorkStarted(self, event: WorkStarted) -> None:
        self._end_work()
        self._work = WorkBar(self._console, event) if event.planned else None

    def show_StepStarted(self, event: StepStarted) -> None:
        self._end_work()
        self._work = StepBar(self._console, event)

    def show_WorkUnderway(self, event: WorkUnderway) -> None:
        if isinstance(self._work, WorkBar):
            self._work.go_on(event)

    def show_WorkAdvanced(self, event: WorkAdvanced) -> None:
        if self._work is not None:
            self._work.advance(event)

    def show_OthersAdvanced(self, event: OthersAdvanced) -> None:
        self.show_WorkAdvanced(WorkAdvanced(count=event.count))

    def show_WorkersAdvanced(self, event: WorkersAdvanced) -> None:
        if isinstance(self._work, WorkBar):
            self._work.watch(event)

    def show_WorkKept(self, event: WorkKept) -> None:
        self.say(str(event))
        if isinstance(self._work, WorkBar):
            self._work.keep(event)

    def show_WorkEnded(self, _: WorkEnded) -> None:
        self._end_work()

    def _end_work(self) -> None:
        """Also of a step inside of which other work starts."""
        if self._work is not None:
            self._work.end()
            self._work = None

    def show_CoresBusy(self, event: "CoresBusy") -> None:
        self.say(str(event))

    def show_ThreadsChosen(self, event: "ThreadsChosen") -> None:
        self.say(str(event))

    def show_TrainingStarted(self, event: "TrainingStarted") -> None:
        self._training.start(event)

    def show_TrainingProgress(self, event: "TrainingProgress") -> None:
        self._training.advance(event)

    def show_EpochEnded(self, event: "EpochEnded") -> None:
        self._training.end_epoch(event)

    def show_TrainingEnded(self, _: "TrainingEnded") -> None:
        self._network.stop()  # the line of a method stays: it may have more seeds

    def show_ModelMeasured(self, _: "ModelMeasured") -> None:
        """Not displayed: this event is for experiment trackers, and the command prints these
        metrics as its result."""

    def show_ServiceReady(self, _: "ServiceReady") -> None:
        """Not displayed: the address is the result of the command, which prints it."""

    def show_NetworkStarted(self, event: "NetworkStarted") -> None:
        self._network.announce(event)

    def show_NetworkEnded(self, event: "NetworkEnded") -> None:
        self._network.finish(event)

    def show_Prepared(self, event: "Prepared") -> None:
        self._network.prepare(event)

    def show_Measuring(self, _: "Measuring") -> None:
        self._network.measure()

    def show_StoreStarted(self, event: "StoreStarted") -> None:
        self._console.print(for_terminal(str(event)), style="bold")

    def show_MethodStarted(self, event: "MethodStarted") -> None:
        self._method = MethodLine(self._console, event)

    def show_SeedStarted(self, event: "SeedStarted") -> None:
        if self._method is not None:
            self._method.start_seed(event)

    def show_MethodEnded(self, event: "MethodEnded") -> None:
        if self._method is not None:
            self._method.end(event)
            self._method = None

    def show_MethodExcluded(self, event: "MethodExcluded") -> None:
        if self._method is not None:
            self._method.exclude(event)
            self._method = None

    @property
    def _training(self) -> TrainingBar | MethodLine:
        """The display of the current training: a method's line in a comparison, otherwise the
        training bar."""
        return self._method or self._network
