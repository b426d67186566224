"""How far a command is with many photos: how many, how fast, how long still."""

import time

from rich.console import Console

from clew.cli.progress import RunReporter
from clew.wording import bytes_text, duration_text


class PhotosReporter(RunReporter):
    """`done_word` is what has been done to those that are counted: "copied"."""

    def __init__(self, console: Console, done_word: str = "") -> None:
        super().__init__(console, "photos")
        self._done_word = f" {done_word}" if done_word else ""

    def _line(self) -> str:
        seconds = max(1e-9, time.monotonic() - self._started)
        left = (self._planned - self._made) * seconds / max(1, self._made)
        written = f", {bytes_text(self._bytes)} written" if self._bytes else ""
        return (
            f"{self._made:,}/{self._planned:,} photos{self._done_word}, "
            f"{self._rates(seconds)}{written}, {duration_text(left)} left"
        )
