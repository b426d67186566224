"""The group `clew patterns`."""

import typer

from clew.cli.help import HelpGroup

# In which people need them.
_ORDER = (
    *("flow", "create", "import", "list", "info", "clean", "similar", "train", "evaluate"),
    *("identify", "recognize", "review", "serve", "export"),
)


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
    known = [one for module in (sets, review, training, photos) for one in module.COMMANDS]
    for command, run in sorted(known, key=lambda one: _ORDER.index(one[0].words.split()[1])):
        command.register(group, run)
    return group
