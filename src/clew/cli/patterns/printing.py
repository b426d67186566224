"""Lines and tables as all commands of the group print them."""

from rich.console import Console
from rich.table import Table

from clew.cli.formats import plain_text


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
