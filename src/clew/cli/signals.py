"""Long commands: Ctrl-C and SIGTERM stop them safely, log messages are shown, and a run that stops
early says how to resume it."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import typer
from rich.console import Console

from clew.base.errors import InputError, LostProcessError, StoppedError
from clew.base.texts import for_shell, for_terminal
from clew.cli.errors import complain, error_text, with_flags
from clew.cli.printing import print_line
from clew.cli.progress import say
from clew.engine.torchrun import count_processes, is_first_process


@contextmanager
def long_run(console: Console, message: str, *, overwrite: bool = False) -> "Iterator[StopRequest]":
    """Context of a long run, possibly one of several processes. If a signal stops the run, even at
    once, it prints how to resume; an error that all processes raise is printed by the first only.
    `overwrite` says whether the command had --overwrite, which must be omitted to resume.
    """
    is_alone = count_processes() == 1
    resume = how_to_resume(is_alone=is_alone, overwrite=overwrite)
    with stop_on_signal(console, message, resume=resume, is_passed_on=not is_alone) as stop:
        try:
            yield stop
        except StoppedError as error:
            _say_last(console, f"{error_text(error)}{resume if error.is_resumable else ''}")
            raise stop.exit() from None
        except KeyboardInterrupt:
            _say_last(console, f"stopped.{resume}")
            raise stop.exit() from None
        except InputError:
            if is_first_process():
                raise
            raise typer.Exit(2) from None
        except LostProcessError as error:
            if error.is_first:
                raise
            raise typer.Exit(1) from None


@contextmanager
def saying_how_it_was_stopped(*, is_resumable: bool, overwrite: bool = False) -> Iterator[None]:
    """Context of every command: Ctrl-C and SIGTERM end it, with a message that says whether the
    same command resumes it or starts over."""
    is_alone = count_processes() == 1
    message = "stopped. Run the same command again to start over."
    if is_resumable:
        message = f"stopped.{how_to_resume(is_alone=is_alone, overwrite=overwrite)}"
    if not is_first_process():
        message = ""  # the first process says it
    try:
        with interruptible(message):
            yield
    except KeyboardInterrupt as interrupt:
        if message:
            complain(message)
        raise exit_interrupted(interrupt) from None


def _say_last(console: Console, text: str) -> None:
    """Also for --quiet: a run never stops without a word."""
    if not console.quiet:
        print_line(console, text)
    elif is_first_process():
        complain(text)


def how_to_resume(*, is_alone: bool = True, overwrite: bool = False) -> str:
    """A hint with the command that resumes the run: the same one without --overwrite, which would
    delete what was just saved."""
    if not is_alone:  # torchrun's part of the command is unknown
        without = " without --overwrite" if overwrite else ""
        return f" Run the same command again{without} to resume."
    words = [word for word in sys.argv[1:] if word != "--overwrite"]
    return f" To resume: {for_shell(['clew', *words])}"


@contextmanager
def shown_log(console: Console) -> Iterator[None]:
    """Shows the log of the library, each message once."""
    logger, handler = logging.getLogger("clew"), _Sentences(console)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def log_to_stderr() -> None:
    """Log clew's messages and other libraries' warnings to stderr, for the rest of the process."""
    handler = logging.StreamHandler()
    handler.setFormatter(_WithFlags("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    if not logging.getLogger("clew").isEnabledFor(logging.INFO):  # --verbose logs more
        logging.getLogger("clew").setLevel(logging.INFO)


class _WithFlags(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = for_terminal(super().format(record), lines=True)
        return with_flags(text) if record.name.startswith("clew") else text


class _Sentences(logging.Handler):
    """Prints each distinct message once, since every split logs the same ones."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = with_flags(record.getMessage())
        if message not in self._said:
            self._said.add(message)
            say(self._console, message)


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
) -> "Iterator[StopRequest]":
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
