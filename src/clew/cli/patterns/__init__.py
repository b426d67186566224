"""The group `clew patterns`."""

import typer

from clew.cli.help import HelpGroup


def build_group() -> typer.Typer:
    """The group with all its commands, in the order in which people need them."""
    from clew.cli.patterns import cleaning, flow, photos, sets, training

    group = typer.Typer(
        cls=HelpGroup,
        help="Train a photo classifier, identify new photos, and correct its predictions.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in (flow, sets, cleaning, training, photos):
        for command, run in module.COMMANDS:
            command.register(group, run)
    return group
