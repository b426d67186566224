"""clew patterns train"""

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from clew.base.texts import duration_text
from clew.cli.commands import Call, Command
from clew.cli.options import CACHE, HARDWARE, Spelling
from clew.cli.patterns.figures import print_doubt, print_places, print_reached
from clew.cli.patterns.hints import command_text
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.cli.signals import long_run
from clew.patterns.library.folders import LIBRARY
from clew.patterns.workflow import train

if TYPE_CHECKING:
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.library.pattern_set import PatternSet

COMMAND = Command(
    function=train,
    name="patterns train",
    example="clew patterns train --data photos --output-dir trained",
    groups={
        "Photos": ("data", "library", "split", "image_size", "cache"),
        "Output": ("out", "overwrite", "log_to"),
        "Network": ("network", "pretrained", "from_scratch", "start_from"),
        "Training": (
            *("epochs", "minutes", "lr", "patience", "weight_decay", "warmup", "focal_loss"),
            *("label_smoothing", "class_weights", "seed"),
        ),
        "Augmentation": ("augment", "rand_augment", "mixup", "crop", "flip"),
        **HARDWARE,
        **CACHE,
    },
    spelling=Spelling(words=("name",), metavars={"split": "A/B/C", "rand_augment": "N,M"}),
    has_json=True,
    is_resumable=True,
)
STOP_MESSAGE = "everything is saved after this step"


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    from clew.engine.processes import is_first_process

    call.progress.quiet |= not is_first_process()
    with (
        long_run(call.progress, STOP_MESSAGE, overwrite=call.settings["overwrite"]) as stop,
        Renderer(call.progress) as reporter,
    ):
        result = train(**call.settings, reporter=reporter, should_stop=stop)
    if not is_first_process():
        return
    if call.as_json:
        call.print_json(result.raw)
        return
    if not result.is_new and result.pattern_set is not None:
        why = "no photos have been added or removed and no new settings passed"
        say_unchanged(call.progress, result.pattern_set, why)
        return
    reporter.say(epochs_text(result.raw, is_new=reporter.has_trained))
    print_training(call.console, call.progress, result)
    _say_next(call.progress, result)


def print_training(console: Console, progress: Console, result: "ClassifierResult") -> None:
    progress.print()
    print_reached(console, result.raw)
    print_doubt(progress, result.raw)
    print_places(console, result)


def epochs_text(results: dict[str, Any], *, is_new: bool) -> str:
    return (
        f"{'' if is_new else 'already trained: '}best epoch {results['best_epoch']} of "
        f"{results['epochs_run']}, {duration_text(results['seconds'])}, "
        f"{results['images_per_second']:,.0f} photos/s"
    )


def say_unchanged(console: Console, pattern_set: "PatternSet", why: str) -> None:
    again = command_text("train", pattern_set.name, "--overwrite", library=pattern_set.library)
    print_line(
        console,
        f"nothing to do: {why} since {pattern_set.latest_model()} was trained. "
        f"To train a new model from scratch: {again}",
    )


def _say_next(console: Console, result: "ClassifierResult") -> None:
    """Print the next commands, ready to paste."""
    made = result.pattern_set
    which = ("--model", result.model) if made is None else ("--name", made.name)
    commands = {
        "identify photos": ("identify", "FOLDER", *which),
        "evaluate it": ("evaluate", *which, "--data", "DIR"),
        "open its page": ("serve", *which),
        "export it": ("export", *which, "--out", "model.onnx"),
    }
    console.print("next:")
    for what, (command, *words) in commands.items():
        text = command_text(str(command), *words, library=LIBRARY if made is None else made.library)
        print_line(console, f"  {what + ':':<18}{text}")
