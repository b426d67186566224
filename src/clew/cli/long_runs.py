"""Long commands: Ctrl-C and SIGTERM stop them safely, log messages are shown, and a run that
stops early says how to resume it."""

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console

from clew.cli.errors import error_text, with_flags
from clew.cli.printing import print_line
from clew.cli.progress import say
from clew.errors import InputError, StoppedError
from clew.foreign_text import for_shell

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A second signal within this time is the first one, forwarded by torchrun.
_SAME_SECONDS = 1.0


class StopRequest:
    """Records that a signal asked the run to stop. The run calls it to check; `number` is the
    signal number, or 0.
    """

    def __init__(self, console: Console, message: str, *, same_seconds: float = 0.0) -> None:
        self._console, self._message, self._same_seconds = console, message, same_seconds
        self.number = 0
        self._received = 0.0

    def __call__(self) -> bool:
        return self.number != 0

    def exit(self) -> typer.Exit:
        """The exit code that shells use for a command that a signal ended."""
        return typer.Exit(128 + self.number)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._received >= self._same_seconds:
                raise KeyboardInterrupt
            return
        self.number, self._received = number, time.monotonic()
        self._console.print(f"stopping: {self._message} (press Ctrl-C again to stop immediately)")


@contextmanager
def stop_on_signal(
    console: Console, message: str, *, is_passed_on: bool = False
) -> Iterator[StopRequest]:
    """The first Ctrl-C or SIGTERM asks the run to stop, the second stops it at once. The previous
    handlers are restored afterwards.

    Set `is_passed_on` under torchrun, which forwards a Ctrl-C that its processes have already
    received.
    """
    stop = StopRequest(console, message, same_seconds=_SAME_SECONDS if is_passed_on else 0.0)
    before = {number: signal.signal(number, stop.receive) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def long_run(console: Console, message: str, *, overwrite: bool = False) -> Iterator[StopRequest]:
    """Context of a long run, possibly one of several processes. If a signal stops the run, even at
    once, it prints how to resume; an error that all processes raise is printed by the first only.
    `overwrite` says whether the command had --overwrite, which must be omitted to resume.
    """
    from clew.engine.processes import count_processes, is_first_process

    is_alone = count_processes() == 1
    with stop_on_signal(console, message, is_passed_on=not is_alone) as stop:
        try:
            yield stop
        except StoppedError as error:
            resume = how_to_resume(is_alone=is_alone, overwrite=overwrite)
            print_line(console, f"{error_text(error)}{resume if error.is_resumable else ''}")
            raise stop.exit() from None
        except KeyboardInterrupt:
            resume = how_to_resume(is_alone=is_alone, overwrite=overwrite)
            print_line(console, f"stopped.{resume}")
            raise stop.exit() from None
        except InputError:
            if is_first_process():
                raise
            raise typer.Exit(2) from None


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
    logging.getLogger("clew").setLevel(logging.INFO)


class _WithFlags(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
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
