"""Ctrl-C and SIGTERM: a long run ends in order, and can be gone on with."""

import signal
import time
from types import FrameType

from rich.console import Console

# torchrun passes on a Ctrl-C that the terminal has sent to its processes already.
_SAME_SECONDS = 1.0


class StopOnSignal:
    """The first signal asks the run to end in order; the second ends it at once.

    The run asks by calling it. `number` is that of the signal, 0 while there was none.
    """

    def __init__(self, console: Console, message: str) -> None:
        self._console, self._message = console, message
        self.number = 0
        self._received = 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def __call__(self) -> bool:
        return self.number != 0

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            if time.monotonic() - self._received > _SAME_SECONDS:
                raise KeyboardInterrupt
            return
        self.number, self._received = number, time.monotonic()
        self._console.print(f"stopping: {self._message} (again to stop at once)")
