"""Ctrl-C and SIGTERM: a long run ends in order, and can be gone on with."""

import signal
import time
from types import FrameType

from rich.console import Console

# Within this time a signal is the one before, passed on.
_SAME_SECONDS = 1.0


class StopOnSignal:
    """The first signal asks the run to end in order; the second ends it at once.

    The run asks by calling it. `number` is that of the signal, 0 while there was none. torchrun
    passes on a Ctrl-C that the terminal has sent to its processes already: `is_passed_on`.
    """

    def __init__(self, console: Console, message: str, *, is_passed_on: bool = False) -> None:
        self._console, self._message = console, message
        self._same_seconds = _SAME_SECONDS if is_passed_on else 0.0
        self.number = 0
        self._received = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def __call__(self) -> bool:
        return self.number != 0

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._received >= self._same_seconds:
                raise KeyboardInterrupt
            return
        self.number, self._received = number, time.monotonic()
        self._console.print(f"stopping: {self._message} (again to stop at once)")
