"""Long commands: Ctrl-C and SIGTERM stop them safely, log messages are shown, and a run that
stops early says how to resume it."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import typer
from rich.console import Console

from clew.base.errors import InputError, LostProcessError, StoppedError
from clew.base.progress import Reporter, StepStarted, report_work
from clew.base.texts import for_shell, for_terminal
from clew.cli.errors import complain, error_text, with_flags
from clew.cli.printing import print_line
from clew.cli.progress import say
from clew.cli.signals import StopRequest, exit_interrupted, interruptible, stop_on_signal


@contextmanager
def long_run(console: Console, message: str, *, overwrite: bool = False) -> Iterator[StopRequest]:
    """Context of a long run, possibly one of several processes. If a signal stops the run, even at
    once, it prints how to resume; an error that all processes raise is printed by the first only.
    `overwrite` says whether the command had --overwrite, which must be omitted to resume.
    """
    is_alone = _is_alone()
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
            if _is_first():
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
    is_alone = _is_alone()
    message = "stopped. Run the same command again to start over."
    if is_resumable:
        message = f"stopped.{how_to_resume(is_alone=is_alone, overwrite=overwrite)}"
    if not _is_first():
        message = ""  # the first process says it
    try:
        with interruptible(message):
            yield
    except KeyboardInterrupt as interrupt:
        if message:
            complain(message)
        raise exit_interrupted(interrupt) from None


def _is_alone() -> bool:
    """Whether torchrun has not started several processes. The engine knows too, but loads
    PyTorch."""
    is_started = "TORCHELASTIC_RUN_ID" in os.environ
    return not is_started or os.environ.get("WORLD_SIZE") == "1"


def _is_first() -> bool:
    return _is_alone() or os.environ.get("RANK") == "0"


def load_libraries(reporter: Reporter) -> None:
    """Import what takes seconds, on a busy machine a minute, and say so."""
    with report_work(reporter, StepStarted(name="loading PyTorch")):
        import_module("torch")
        import_module("transformers")


def _say_last(console: Console, text: str) -> None:
    """Also for --quiet: a run never stops without a word."""
    if not console.quiet:
        print_line(console, text)
    elif _is_first():
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
