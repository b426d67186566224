"""What runs in a worker's process."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clew.base.errors import ClewError, StoppedError
from clew.base.progress import Reporter
from clew.cluster.mailbox import Mailbox, Report
from clew.version import __version__

# Called in each worker with its reporter and its `should_stop`; it ends when nothing is left to do.
Work = Callable[[Reporter, Callable[[], bool]], Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a worker's work ended: with a result, with an error that a person can read, or because it
    was asked to stop."""

    result: Any = None
    error: ClewError | None = None
    is_stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """Who a worker is."""

    host: str
    pid: int
    version: str


class Worker:
    """An actor: it works in one thread, and answers in others."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()
        self._stop = threading.Event()

    def greet(self) -> Greeting:
        return Greeting(host=socket.gethostname(), pid=os.getpid(), version=__version__)

    def run(self, work: Work) -> Outcome:
        try:
            return Outcome(result=work(self._mailbox, self._stop.is_set))
        except StoppedError:
            return Outcome(is_stopped=True)
        except ClewError as error:
            return Outcome(error=error)

    def report(self) -> Report:
        return self._mailbox.collect()

    def stop(self) -> None:
        self._stop.set()
