"""Lines, tables and hints as all commands of the group print them."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clew.cli.formats import plain_text
from clew.patterns.library.folders import LIBRARY


def print_line(console: Console, text: object) -> None:
    """In one line, however long: a path or a command in it can be copied."""
    console.print(plain_text(text), markup=False, soft_wrap=True)


def make_table(first: str, *numbers: str) -> Table:
    """A column of names, and others of numbers."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def command_text(command: str, *words: object, library: Path = LIBRARY) -> str:
    """`clew patterns COMMAND WORDS`, in the same library; it can be pasted."""
    where = [] if library == LIBRARY else ["--library", str(library)]
    return shlex.join(["clew", "patterns", command, *map(str, words), *where])
