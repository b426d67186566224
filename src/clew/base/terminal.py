"""The one console: it prints text as it is, and nothing in it acts on the terminal."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

from clew.base.texts import for_terminal


class TextConsole(Console):
    """A console without markup (`[red]`), emoji codes (`:bomb:`) and highlighting, in which control
    characters of any string are escaped. Use `Text` for styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        options |= {"markup": False, "emoji": False}
        return super().render_str(for_terminal(text, lines=True), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Also what is in a `Text`, such as the description of a progress bar."""
        for part in super().render(renderable, options):
            safe = part.text if part.control else for_terminal(part.text, lines=True)
            yield part if safe == part.text else Segment(safe, part.style)

    def status(self, status: Any, **options: Any) -> Status:
        return super().status(as_text(status), **options)


def as_text(text: object, style: str = "") -> Text:
    """Text on one line, safe for a terminal; for parts of Rich that would read a string as
    markup."""
    return Text(for_terminal(text), style)


def print_line(console: Console, text: object, style: str | None = None) -> None:
    """Print one line, however long, so that a path or command can be copied."""
    console.print(Text(for_terminal(text)), style=style, soft_wrap=True)
