"""clew patterns flow"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clew.cli import plan_flags
from clew.cli.patterns.figures import print_reached
from clew.cli.patterns.identify import identify_and_print, say_how_to_review
from clew.cli.patterns.import_ import import_and_print, say_next
from clew.cli.patterns.library_flags import LIBRARY, Library, Review, Web, command_text
from clew.cli.patterns.review import run_review
from clew.cli.patterns.train import run_training, say_unchanged
from clew.cli.printing import print_line
from clew.errors import SettingsMismatchError

if TYPE_CHECKING:
    from clew.patterns.identification.run import IdentifyConfig, IdentifyResult
    from clew.patterns.library.choose import Chosen
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.review import ReviewConfig
    from clew.patterns.training import PatternsConfig

_EPILOG = "Example: `clew patterns flow animals --from my_photos --identify holiday_photos --web`"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(flow)


def flow(
    name: Annotated[str, typer.Argument(help="The set; made if there is none of that name.")],
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Photos to import: a folder with a folder a class. May be given twice."
        ),
    ] = None,
    identify: Annotated[
        Path | None, typer.Option(help="New photos to say what they show, once it is trained.")
    ] = None,
    review: Review = False,
    web: Web = False,
    epochs: Annotated[
        int | None,
        typer.Option(help="Times that all photos are seen. [default: 30, more for few photos]"),
    ] = None,
    library: Library = LIBRARY,
    device: plan_flags.Device = None,
) -> None:
    """All in one: create, import, train, identify, review; each can also be run by itself.

    Given again, it goes on where it was: photos are imported once, and what is trained is trained
    again only when photos have come or gone.
    """
    from clew.patterns.flow import FlowConfig, run_flow

    console = Console(highlight=False, soft_wrap=True)
    config = FlowConfig(
        name=name,
        library=library,
        sources=sources or [],
        identify=identify,
        review=review or web,
        epochs=epochs,
        device=device,
    )
    result = run_flow(config, _ShownSteps(console, is_reviewed=config.review, web=web))
    console.print()
    say_next(console, result.pattern_set)


class _ShownSteps:
    """Each step under its name, and shown as by its own command."""

    def __init__(self, console: Console, *, is_reviewed: bool, web: bool) -> None:
        self._console, self._is_reviewed, self._web = console, is_reviewed, web

    def created(self, pattern_set: "PatternSet") -> None:
        print_line(self._console, f'made the set "{pattern_set.name}" in {pattern_set.folder}')

    def import_photos(self, pattern_set: "PatternSet", sources: Sequence[Path]) -> None:
        self._head("import")
        import_and_print(self._console, pattern_set, sources)

    def train(self, pattern_set: "PatternSet", config: "PatternsConfig") -> dict[str, Any]:
        self._head("train")
        try:
            return run_training(config)
        except SettingsMismatchError as error:
            name, library = pattern_set.name, pattern_set.library
            anew = command_text("train", name, "--overwrite", library=library)
            raise SettingsMismatchError(f"{error.text} To begin anew: {anew}") from None

    def keep_model(self, pattern_set: "PatternSet", results: dict[str, Any]) -> None:
        """What was reached is told even when there is nothing to do."""
        self._head("train")
        say_unchanged(pattern_set)
        print_reached(self._console, results)

    def identify(self, chosen: "Chosen", config: "IdentifyConfig") -> "IdentifyResult":
        self._head("identify")
        console = Console(highlight=False)
        result = identify_and_print(console, config)
        if result.counts["doubtful"] and not self._is_reviewed:
            say_how_to_review(console, chosen)
        return result

    def review(self, chosen: "Chosen", config: "ReviewConfig") -> None:
        self._head("review")
        run_review(self._console, chosen, config, web=self._web)

    def _head(self, title: str) -> None:
        self._console.print()
        self._console.print(title, style="bold")
