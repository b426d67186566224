"""clew patterns flow: all steps at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from clew.base.errors import SettingsMismatchError
from clew.cli.commands import Call, read_command
from clew.cli.patterns.photos import (
    describe_identification,
    identify_and_print,
    run_review,
    say_how_to_review,
)
from clew.cli.patterns.sets import command_text, import_and_print, say_next
from clew.cli.patterns.training import (
    STOP_MESSAGE,
    epochs_text,
    print_reached,
    print_training,
    say_unchanged,
)
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.cli.serve import check_web
from clew.cli.signals import long_run
from clew.patterns.workflow import run_flow

if TYPE_CHECKING:
    from clew.patterns.identification.identify import IdentifyConfig, IdentifyResult
    from clew.patterns.library.choose import Chosen
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.review import ReviewConfig
    from clew.patterns.training import PatternsConfig

_FLOW = read_command(run_flow, "patterns flow")


def _run_flow(call: Call) -> None:
    from clew.patterns import flow

    settings = dict(call.settings)
    web = settings.pop("web")
    check_web(web)
    settings["review"] |= web
    steps = _ShownSteps(call.console, call.progress, is_reviewed=settings["review"], web=web)
    result = flow.run_flow(steps=steps, **settings)
    if call.as_json:
        identified = result.identified and describe_identification(result.identified)
        call.print_json({"results": result.results, "identified": identified})
        return
    call.progress.print()
    say_next(call.progress, result.pattern_set)


class _ShownSteps:
    """Runs each step of the flow under its own heading, with the output of its own command."""

    def __init__(
        self, console: Console, progress: Console, *, is_reviewed: bool, web: bool
    ) -> None:
        self._console, self._progress = console, progress
        self._is_reviewed, self._web = is_reviewed, web

    def created(self, pattern_set: "PatternSet") -> None:
        print_line(self._console, f'created the set "{pattern_set.name}" in {pattern_set.folder}')

    def import_photos(self, pattern_set: "PatternSet", sources: Sequence[Path]) -> None:
        self._head("import")
        import_and_print(self._progress, pattern_set, sources, results=self._console)

    def train(self, pattern_set: "PatternSet", config: "PatternsConfig") -> dict[str, Any]:
        self._head("train")
        try:
            return self._train(config)
        except SettingsMismatchError as error:
            name, library = pattern_set.name, pattern_set.library
            again = command_text("train", name, "--overwrite", library=library)
            raise SettingsMismatchError(f"{error.text} To start over: {again}") from None

    def keep_model(self, pattern_set: "PatternSet", results: dict[str, Any]) -> None:
        """The accuracy is printed even when there is nothing to do."""
        self._head("train")
        say_unchanged(self._progress, pattern_set, "no photos have been added or removed")
        self._progress.print()
        print_reached(self._console, results)

    def identify(self, chosen: "Chosen", config: "IdentifyConfig") -> "IdentifyResult":
        self._head("identify")
        result = identify_and_print(self._console, self._progress, config)
        if result.counts["doubtful"] and not self._is_reviewed:
            say_how_to_review(self._progress, chosen)
        return result

    def review(self, chosen: "Chosen", config: "ReviewConfig") -> None:
        self._head("review")
        run_review(self._console, chosen, config, web=self._web)

    def _train(self, config: "PatternsConfig") -> dict[str, Any]:
        from clew.patterns.workflow.training import run_training

        with (
            long_run(self._progress, STOP_MESSAGE) as stop,
            Renderer(self._progress) as reporter,
        ):
            result = run_training(config, reporter, stop)
        reporter.say(epochs_text(result.raw, is_new=reporter.has_trained))
        print_training(self._console, self._progress, result)
        return result.raw

    def _head(self, title: str) -> None:
        self._console.print()
        self._console.print(title, style="bold")


COMMANDS = ((_FLOW, _run_flow),)
