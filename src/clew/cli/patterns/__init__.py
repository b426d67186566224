"""The group `clew patterns`: one file per command, as in the folder above."""

import typer

from clew.cli.help import HelpGroup


def build_group() -> typer.Typer:
    """The group with all its commands, in the order in which people need them."""
    from clew.cli.patterns import (
        clean,
        create,
        evaluate,
        export,
        flow,
        identify,
        import_,
        info,
        list_,
        recognize,
        review,
        serve,
        similar,
        train,
    )

    group = typer.Typer(
        cls=HelpGroup,
        help="Train a photo classifier, identify new photos, and correct its predictions.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    of_sets = (flow, create, import_, list_, info, clean, similar)
    for command in (*of_sets, train, evaluate, identify, recognize, review, serve, export):
        command.register(group)
    return group
