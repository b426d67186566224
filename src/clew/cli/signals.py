"""Ctrl-C and SIGTERM: they interrupt a command, or ask a long run to stop."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import typer
from rich.console import Console

from clew.base.texts import for_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A second signal within this time is the first one, forwarded by torchrun.
_SAME_SECONDS = 1.0


class Interrupted(KeyboardInterrupt):  # noqa: N818 - as KeyboardInterrupt
    """A signal interrupted the command; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_interrupted(interrupt: KeyboardInterrupt) -> typer.Exit:
    """The exit code that shells use for a command that a signal ended."""
    return typer.Exit(128 + getattr(interrupt, "number", signal.SIGINT))


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Interrupted in the block; the second one ends the process with the
    message (none if it is ""), whatever the block still has to clean up. So does the first one
    during an import. The previous handlers are restored afterwards."""
    first: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if first or _is_importing(frame):
            _end_now(number, message)
        first.append(number)
        raise Interrupted(number)

    with _handling(receive):
        yield


class StopRequest:
    """Records that a signal asked the run to stop. The run calls it to check; `number` is the
    signal number, or 0.
    """

    def __init__(
        self, console: Console, message: str, *, resume: str = "", same_seconds: float = 0.0
    ) -> None:
        self._console, self._message, self._same_seconds = console, message, same_seconds
        self._resume = resume
        self.number = 0
        self._received = 0.0
        self._has_raised = False

    def __call__(self) -> bool:
        return self.number != 0

    def exit(self) -> typer.Exit:
        """The exit code that shells use for a command that a signal ended."""
        return typer.Exit(128 + self.number)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):  # mostly at the start, when nothing has to be finished
            _end_now(self.number or number, f"stopped.{self._resume}")
        if self.number:
            if time.monotonic() - self._received >= self._same_seconds:
                if self._has_raised:
                    _end_now(self.number, f"stopped.{self._resume}")
                self._has_raised = True
                raise Interrupted(self.number)
            return
        self.number, self._received = number, time.monotonic()
        self._say(f"stopping: {self._message} (press Ctrl-C again to stop immediately)")

    def _say(self, text: str) -> None:
        try:
            self._console.print(text)
        except RuntimeError:  # the signal interrupted a write to this very stream
            os.write(self._console.file.fileno(), f"{text}\n".encode())


@contextmanager
def stop_on_signal(
    console: Console, message: str, *, resume: str = "", is_passed_on: bool = False
) -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM asks the run to stop; the second stops it at once, as does the
    first one during an import. The previous handlers are restored afterwards. `resume` is the hint
    that a run without time to clean up prints.

    Set `is_passed_on` under torchrun, which forwards a Ctrl-C that its processes have already
    received.
    """
    same_seconds = _SAME_SECONDS if is_passed_on else 0.0
    stop = StopRequest(console, message, resume=resume, same_seconds=same_seconds)
    with _handling(stop.receive):
        yield stop


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A signal that the process ignores, as after nohup, stays ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heard:
            kept = before[number]
            signal.signal(number, signal.SIG_DFL if kept is None else kept)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the signal interrupted an import. An exception raised there may be swallowed, as by
    torch, which imports numpy from C++: the command would continue with half of a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _end_now(number: int, message: str) -> None:
    """Ends the process without cleaning up: everything that is saved is complete by itself."""
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, b"\x1b[?25h\n")  # the cursor, which a progress bar hides
        if message:
            os.write(2, f"clew: {for_terminal(message)}\n".encode())
    os._exit(128 + number)
