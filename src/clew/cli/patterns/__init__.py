"""The group `clew patterns`: one file a command, as in the folder above."""

import typer


def build_group() -> typer.Typer:
    """The group with all its commands, in the order in which people need them."""
    from clew.cli.patterns import (
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
        train,
    )

    group = typer.Typer(
        help="Train a classifier on folders of photos, name new photos, correct it.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
    )
    of_sets = (flow, create, import_, list_, info)
    for command in (*of_sets, train, evaluate, identify, recognize, review, export):
        command.register(group)
    return group
