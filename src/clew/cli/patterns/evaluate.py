"""clew patterns evaluate"""

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from clew.base.texts import counted, tenth_percent
from clew.cli.commands import Call, Command
from clew.cli.options import Spelling
from clew.cli.patterns.figures import print_places, print_reached
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer, excluded_text
from clew.cli.signals import long_run
from clew.patterns.workflow import evaluate

if TYPE_CHECKING:
    from clew.patterns.flow import ClassifierResult

COMMAND = Command(
    function=evaluate,
    name="patterns evaluate",
    example="clew patterns evaluate --model trained --data other_photos",
    spelling=Spelling(words=()),
    has_json=True,
    has_threads=True,
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    with (
        long_run(call.progress, "nothing will be written") as stop,
        Renderer(call.progress) as reporter,
    ):
        result = evaluate(**call.settings, reporter=reporter, should_stop=stop)
    if call.as_json:
        call.print_json(result.raw)
        return
    _print_photos(call.console, result)
    call.progress.print()
    print_reached(call.console, result.raw)
    _print_before(call.console, result)
    print_places(call.console, result)


def _print_photos(console: Console, result: "ClassifierResult") -> None:
    data = result.raw["data"]
    lines = [f"evaluated on {counted(data['photos'], 'photo')} from {data['folder']}"]
    if data["excluded"]:
        where = result.path / "excluded.csv"
        lines.append(f"excluded: {excluded_text(data['excluded'])}: see {where} for the reasons")
    if data["all_seen"]:
        counts = ", ".join(f"{count:,} {split}" for split, count in data["seen"].items())
        lines.append(
            f"warning: all of these photos were used to train or select the classifier ({counts}), "
            "so these metrics say nothing about new photos: evaluate on other photos."
        )
    for line in lines:
        print_line(console, line)


def _print_before(console: Console, result: "ClassifierResult") -> None:
    before = result.raw["trained_test_accuracy"]
    if isinstance(before, float):
        console.print(f"accuracy on its own test split: {tenth_percent(before)}")
