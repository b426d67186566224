"""The group `clew patterns`."""

from typing import Any

import typer

from clew.cli.commands import read_command
from clew.cli.errors import read_texts
from clew.cli.help import HelpGroup


def build_group() -> typer.Typer:
    """The group with all its commands."""
    from clew.cli.patterns import photos, review, sets, training

    group = typer.Typer(
        cls=HelpGroup,
        help="Train a photo classifier, identify new photos, and correct its predictions.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    known: dict[str, Any] = {}
    for module in (photos, review, sets, training):
        known |= module.COMMANDS
    for words in read_texts():  # in the order in which people need them
        if (name := words.removeprefix("patterns ")) in known and name != words:
            function, run = known[name]
            read_command(function, words).register(group, run)
    return group
