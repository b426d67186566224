"""Lines and tables that all commands print."""

import textwrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from clew.base.texts import for_terminal


def print_line(console: Console, text: object, style: str | None = None) -> None:
    """Print one line, however long, so that a path or command can be copied."""
    console.print(Text(for_terminal(text)), style=style, soft_wrap=True)


def first_words(text: str, characters: int = 200) -> str:
    """The start of a long text on one line."""
    return textwrap.shorten(text[: 4 * characters], characters, placeholder=" ...")


class PlainTable(Table):
    """A table without lines around its cells, and without spaces after the last one: they would be
    copied along."""

    def __init__(self, **options: Any) -> None:
        super().__init__(box=None, header_style="bold", padding=(0, 2, 0, 0), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = super().__rich_console__(console, options)
        for line in Segment.split_lines(part for part in drawn if isinstance(part, Segment)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                last = line.pop()
                line.append(Segment(last.text.rstrip(), last.style))
            yield from line
            yield Segment.line()


def make_table(first: str = "", *numbers: str) -> Table:
    """A table with a column of names (`first`) and right-aligned columns of numbers; without
    arguments, it has no columns yet."""
    table = PlainTable()
    if first:
        table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
