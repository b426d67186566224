"""Run a function in its own process, which may be killed or run out of resources."""

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.forking import HANGS_SECONDS


@dataclass(frozen=True)
class Outcome:
    """`exitcode` is negative when a signal ended the process; `error` is the exception's text."""

    exitcode: int
    value: Any = None
    error: str = ""
    trace: str = ""


def run_in_child(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """Forked, so that nothing has to be imported again; fails if it does not finish."""
    mine, other = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_run, args=(other, function, arguments)
    )
    child.start()
    other.close()
    try:
        answer = mine.recv() if mine.poll(HANGS_SECONDS) else None
    except EOFError:  # it died without an error
        answer = {}
    child.join(HANGS_SECONDS if answer is not None else 0)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the process did not finish")
    return Outcome(child.exitcode, **(answer or {}))


def _run(answer: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        answer.send({"value": function(*arguments)})
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        answer.send({"error": text, "trace": traceback.format_exc()})
