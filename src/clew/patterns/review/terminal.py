"""The review at a terminal: a photo, the guesses, one key."""

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from clew.base.errors import InputError
from clew.base.terminal import print_line
from clew.base.texts import for_terminal, whole_percent
from clew.patterns.identification.results import Identified
from clew.patterns.library.placing import check_class_name
from clew.patterns.photos.decode import PhotoError, open_photo
from clew.patterns.review.journal import Decision
from clew.patterns.review.session import Review, find_alike, find_label, title_of

_BAR = 24
_MOST_CHOICES = 12
# Lines of a terminal that the guesses and the keys take; the photo gets the rest.
_OTHER_LINES = 8
_MOST_ROWS, _FEWEST_ROWS, _MOST_COLUMNS = 24, 6, 72
_COLORS = ("256", "truecolor")
# A block's upper half has the foreground color, its lower half the background's: two pixels per
# character.
_HALF = "\N{UPPER HALF BLOCK}"
_HELP = (
    "Enter or a: accept the most likely class. A number: choose that class. c: type the name of a "
    "class, existing or new. s: skip (not asked again). u: undo. q: quit (continue later)."
)


class Dialogue:
    """Asks the questions of a review until they are answered, or a person quits."""

    def __init__(self, console: Console, review: Review, keys: "Keys") -> None:
        self._console, self._review, self._keys = console, review, keys

    def run(self) -> None:
        while self._ask_all() and self._wants_back():
            pass

    def _ask_all(self) -> bool:
        """False if a person quit."""
        while (question := self._review.current) is not None:
            self._show(question)
            if not self._decide(question):
                return False
        return True

    def _wants_back(self) -> bool:
        """After the last photo: a mistake there can be undone like any other."""
        self._say("all photos reviewed: press Enter to finish, u to undo the last one", style="dim")
        while (answer := self._keys.read()) is not None and answer.casefold() == "u":
            try:
                self._review.undo()
                return True
            except InputError as error:
                self._say(str(error), style="yellow")
        return False

    def _decide(self, question: Identified) -> bool:
        """Read keys until one changes something; False if the user quits."""
        while True:
            answer = self._keys.read()
            if answer is None or answer.casefold() == "q":
                return False
            try:
                if self._answer(question, answer):
                    return True
            except InputError as error:
                self._say(str(error), style="yellow")

    def _answer(self, question: Identified, answer: str) -> bool:
        """Whether another question is open now."""
        word, _, rest = answer.partition(" ")
        key = word.casefold()
        if key in ("", "a"):
            self._tell(self._review.approve())
        elif key == "s":
            self._review.skip()
            self._say(f"skipped: {question.name}", style="dim")
        elif key == "u":
            self._say(f"undone: {self._review.undo().name}", style="dim")
        elif key in ("c", "/"):
            return self._correct(rest)
        elif key.isdigit():
            return self._choose(key)
        else:
            self._say(_HELP, style="dim")
            return False
        return True

    def _choose(self, number: str) -> bool:
        label = self._numbered(number)
        if label is None:
            self._say(
                f"there is no class {number}: see the list, or press c and type the name of the "
                "class."
            )
            return False
        self._tell(self._review.correct(label))
        return True

    def _correct(self, typed: str) -> bool:
        typed = typed.strip() or self._keys.ask("class: ", self._review.classes) or ""
        known = find_label(self._review.classes, typed) or self._numbered(typed)
        if typed and known is None:
            check_class_name(typed)
        if not typed or (known is None and not self._wants_new(typed)):
            self._say("nothing changed", style="dim")
            return False
        self._tell(self._review.correct(known or typed))
        return True

    def _numbered(self, number: str) -> str | None:
        labels = {choice.key: choice.label for choice in self._review.choices()}
        return labels.get(number)

    def _wants_new(self, typed: str) -> bool:
        alike = find_alike(self._review.classes, typed)
        perhaps = f" (did you mean {', '.join(alike)}?)" if alike else ""
        question = (
            f'"{for_terminal(typed)}" is a new class{for_terminal(perhaps)}: create it? [y/N] '
        )
        return (self._keys.ask(question) or "").casefold() in ("y", "yes")

    def _tell(self, decision: Decision) -> None:
        self._say(self._review.describe_result(decision), style="green")

    def _show(self, question: Identified) -> None:
        number, total = self._review.place + 1, len(self._review.queue.questions)
        self._console.print()
        place, name = f"{number:,} of {total:,}", for_terminal(title_of(question))
        title = Text.assemble((place, "bold"), f"  {name}")
        self._console.print(title, soft_wrap=True)
        self._draw(question)
        self._console.print(self._table())
        best = question.best[0][0]
        self._say(f"Enter: {best} · number or c: another · s skip · u undo · q quit", style="dim")

    def _draw(self, question: Identified) -> None:
        if not self._console.is_terminal or self._console.color_system not in _COLORS:
            self._say(str(question.path))
            return
        choices = min(_MOST_CHOICES, len(self._review.classes))
        rows = max(_FEWEST_ROWS, min(_MOST_ROWS, self._console.height - choices - _OTHER_LINES))
        columns = min(_MOST_COLUMNS, self._console.width)
        try:
            self._console.print(draw_blocks(question.path, columns=columns, rows=rows))
        except PhotoError as error:
            self._say(f"the photo cannot be shown: {error.reason}", style="yellow")

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        choices = self._review.choices()
        shown = choices
        if len(choices) > _MOST_CHOICES:  # those that the model guessed or that have a key
            shown = [one for one in choices if len(one.key) == 1 or one.probability is not None]
        best = self._review.current.label if self._review.current else None
        for choice in shown:
            key = Text(choice.key, style="bold" if len(choice.key) == 1 else "dim")
            style = "bold" if choice.label == best else ""
            label, chance = Text(for_terminal(choice.label), style=style), choice.probability
            bar = "" if chance is None else "\N{FULL BLOCK}" * max(1, round(_BAR * chance))
            percent = "" if chance is None else whole_percent(chance)
            table.add_row(key, label, Text(bar, style="cyan"), Text(percent, style="dim"))
        if len(shown) < len(choices):
            more = f"and {len(choices) - len(shown):,} more: press c and type the name"
            table.add_row("", Text(more, style="dim"))
        return table

    def _say(self, text: str, style: str | None = None) -> None:
        print_line(self._console, text, style)


def draw_blocks(path: Path, *, columns: int, rows: int) -> Text:
    """The photo in at most that many characters; its aspect ratio is kept. Raises PhotoError."""
    picture = open_photo(path, at_least=2 * max(columns, 2 * rows))
    scale = min(columns / picture.width, 2 * rows / picture.height)
    width = max(1, round(picture.width * scale))
    height = max(2, 2 * round(picture.height * scale / 2))
    small = picture.resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(small).reshape(height // 2, 2, width, 3).tolist()
    text = Text(no_wrap=True)
    for upper, lower in pixels:
        for above, below in zip(upper, lower, strict=True):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            text.append(_HALF, style)
        text.append("\n")
    text.right_crop()
    return text


_END = "\x04"  # Ctrl-D
_ESCAPE = b"\x1b"
# An arrow key sends its bytes at once; a lone Escape is followed by nothing.
_REST_SECONDS = 0.02


class LineKeys:
    """A person's answers from a pipe or a file, one per line. `read` returns a key or a line, ""
    for Enter, None at the end of input; `ask` a line that answers a prompt."""

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


Keys = LineKeys | TerminalKeys


def open_keys(stream: TextIO, show: Callable[[str], None]) -> Keys:
    """Single keys if `stream` is a terminal that supports them; `show` prints a prompt."""
    if stream.isatty() and find_spec("termios"):  # Windows has none
        return TerminalKeys(stream.fileno())
    return LineKeys(stream, show)


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
