"""Where answers at a terminal come from: single keys from a keyboard, else lines."""

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TextIO

from clew.patterns.review.questions import find_alike

_END = "\x04"  # Ctrl-D
_ESCAPE = b"\x1b"
# An arrow key sends its bytes at once; a lone Escape is followed by nothing.
_REST_SECONDS = 0.02


class Keys(Protocol):
    """A source of a person's answers."""

    def read(self) -> str | None:
        """Read the next answer: a key or a line; "" for Enter, None at the end of input."""

    def ask(self, prompt: str, words: Sequence[str] = ()) -> str | None:
        """A line that answers `prompt`; `words` may be completed with Tab."""


class LineKeys:
    """Answers from a pipe or a file, one per line."""

    def __init__(self, stream: TextIO, show: Callable[[str], None]) -> None:
        self._stream, self._show = stream, show

    def read(self) -> str | None:
        line = self._stream.readline()
        return line.strip() if line else None

    def ask(self, prompt: str, words: Sequence[str] = ()) -> str | None:  # noqa: ARG002
        self._show(prompt)
        return self.read()


class TerminalKeys:
    """Answers from a keyboard; no Enter is needed after a key."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> str | None:
        with _single_keys(self._descriptor):
            key = os.read(self._descriptor, 1)
            if key == _ESCAPE:
                self._drop_rest()
                return "\x1b"
        if not key or key == _END.encode():
            return None
        return "" if key in b"\r\n" else key.decode("utf-8", "replace")

    def ask(self, prompt: str, words: Sequence[str] = ()) -> str | None:
        try:
            with _completing(words):
                return input(prompt).strip()
        except EOFError:
            return ""

    def _drop_rest(self) -> None:
        """The bytes of an arrow or function key, without anything typed after it."""
        byte = self._read_at_once()
        if byte in (b"[", b"O"):
            while (byte := self._read_at_once()) and not 0x40 <= byte[0] <= 0x7E:
                pass

    def _read_at_once(self) -> bytes:
        is_there = select.select([self._descriptor], [], [], _REST_SECONDS)[0]
        return os.read(self._descriptor, 1) if is_there else b""


def open_keys(stream: TextIO, show: Callable[[str], None]) -> Keys:
    """Single keys if `stream` is a terminal that supports them; `show` prints a prompt."""
    if stream.isatty() and _has_termios():
        return TerminalKeys(stream.fileno())
    return LineKeys(stream, show)


def _has_termios() -> bool:
    try:
        import termios  # noqa: F401
    except ImportError:  # Windows
        return False
    return True


@contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Switch the terminal to single keys without echo; input typed ahead is kept."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _completing(words: Sequence[str]) -> Iterator[None]:
    """Tab completes to one of the words, if readline is available."""
    try:
        import readline
    except ImportError:
        yield
        return

    def complete(text: str, state: int) -> str | None:
        return dict(enumerate(find_alike(words, text, most=len(words)))).get(state)

    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(complete if words else None)
    readline.set_completer_delims("")  # a class may have spaces in its name
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
        with contextlib.suppress(ValueError):
            sys.stdout.flush()
