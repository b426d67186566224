"""clew patterns create"""

from typing import Annotated

import typer
from rich.console import Console

from clew.cli.patterns.library_flags import LIBRARY, Library, command_text
from clew.cli.printing import print_line

_EPILOG = "Example: `clew patterns create animals`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(create)


def create(
    name: Annotated[str, typer.Argument(help="What the set is called; its folder's name.")],
    library: Library = LIBRARY,
) -> None:
    """Make a new, empty set of patterns: photos in classes, and the models trained on them."""
    from clew.patterns.library.pattern_set import PatternSet

    made = PatternSet.create(name, library)
    import_them = command_text("import", made.name, "DIR", library=library)
    all_at_once = command_text("flow", made.name, "--from", "DIR", library=library)
    console = Console(highlight=False, soft_wrap=True)
    for line in (
        f'made the set "{made.name}" in {made.folder}',
        f"next, photos from a folder with a folder a class: {import_them}",
        f"or everything in one go: {all_at_once}",
    ):
        print_line(console, line)
