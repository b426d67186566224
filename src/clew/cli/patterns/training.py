"""clew patterns train and evaluate, and clew patterns flow: all steps at once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from clew.base.commands import select
from clew.base.errors import SettingsMismatchError
from clew.base.texts import counted, duration_text, tenth_percent
from clew.cli.commands import Call
from clew.cli.patterns.photos import describe_identification, print_identified
from clew.cli.patterns.review import review_and_print, say_how_to_review
from clew.cli.patterns.sets import command_text, import_and_print, say_next
from clew.cli.printing import print_line, print_table
from clew.cli.renderer import Renderer, excluded_text
from clew.cli.serve import check_web
from clew.cli.signals import long_run
from clew.patterns.settings import LIBRARY, FlowSettings, IdentifySettings, ReviewSettings
from clew.patterns.workflow import evaluate, run_flow, train

if TYPE_CHECKING:
    from clew.patterns.flow import ClassifierResult, FlowSteps
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.training import PatternsConfig


STOP_MESSAGE = "everything is saved after this step"


def _run_train(call: Call) -> None:
    from clew.engine.torchrun import is_first_process

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


_WEAKEST = 5


def print_reached(console: Console, results: dict[str, Any]) -> None:
    """Accuracy with its confidence interval, and the classes with the lowest recall."""
    low, high = results["test_accuracy_ci"]
    right = round(results["test_accuracy"] * results["test_photos"])
    console.print(
        Text.assemble(
            (f"test accuracy {tenth_percent(results['test_accuracy'])}", "bold"),
            f" (95% confidence interval {tenth_percent(low)} to {tenth_percent(high)}): {right:,} "
            f"of {counted(results['test_photos'], 'photo')} correct",
        )
    )
    heads = ("lowest recall", "recall", "most often predicted as")
    below = [row for row in results["per_class"] if row["recall"] is not None and row["recall"] < 1]
    rows = (
        (
            row["class"],
            f"{tenth_percent(row['recall'])} of {row['test']:,}",
            _taken_for(results, row["class"]),
        )
        for row in sorted(below, key=lambda row: row["recall"])[:_WEAKEST]
    )
    print_table(console, heads, rows, numbers=(1,))


def print_doubt(console: Console, results: dict[str, Any]) -> None:
    """Warn about a classifier that may be no better than a constant guess."""
    largest = max(results["per_class"], key=lambda row: row["test"])
    share = largest["test"] / results["test_photos"]
    if results["test_accuracy"] == 1 or results["test_accuracy_ci"][0] > share:
        return
    print_line(
        console,
        f'not clearly better than always predicting "{largest["class"]}" '
        f"({tenth_percent(share)}): more photos, more --epochs or a larger --network may help",
    )


def print_places(console: Console, result: "ClassifierResult") -> None:
    """Print the paths of the report and of results.json. If there is no report, an earlier note
    said why."""
    from clew.storage.places import open_place

    if open_place(result.path).stat(result.report.name) is not None:
        print_line(console, f"report: {result.report}")
    print_line(console, f"all metrics: {result.path / 'results.json'}")


def _taken_for(results: dict[str, Any], name: str) -> str:
    """The class that most of the misclassified photos were predicted as, and how many."""
    place = results["classes"].index(name)
    wrong = {
        other: count
        for other, count in zip(results["classes"], results["confusion"][place], strict=True)
        if other != name and count
    }
    most = max(wrong, key=lambda other: wrong[other])
    return f"{most} ({wrong[most]:,})"


def _run_evaluate(call: Call) -> None:
    result = call.run(evaluate)
    if call.as_json:
        call.print_json(result.raw)
        return
    _print_photos(call.console, result)
    call.progress.print()
    print_reached(call.console, result.raw)
    before = result.raw["trained_test_accuracy"]
    if isinstance(before, float):
        call.console.print(f"accuracy on its own test split: {tenth_percent(before)}")
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


def _run_flow(call: Call) -> None:
    given = FlowSettings(**call.settings)
    check_web(given.web)
    from clew.patterns import flow

    steps = _shown_steps(call.console, call.progress, is_reviewed=given.review or given.web)
    result = flow.run_flow(given, steps)
    if call.as_json:
        identified = result.identified and describe_identification(result.identified)
        call.print_json({"results": result.results, "identified": identified})
        return
    call.progress.print()
    say_next(call.progress, result.pattern_set)


def _shown_steps(console: Console, progress: Console, *, is_reviewed: bool) -> "FlowSteps":
    """Each step of the flow under its own heading, with the output of its own command."""
    from clew.patterns.flow import FlowSteps, run_training
    from clew.patterns.identification.identify import identify_photos

    def head(title: str) -> None:
        console.print()
        console.print(title, style="bold")

    class Shown(FlowSteps):
        def created(self, pattern_set: "PatternSet") -> None:
            print_line(console, f'created the set "{pattern_set.name}" in {pattern_set.folder}')

        def import_photos(self, pattern_set: "PatternSet", sources: Sequence[Path]) -> None:
            head("import")
            import_and_print(progress, pattern_set, sources, results=console)

        def train(self, pattern_set: "PatternSet", config: "PatternsConfig") -> dict[str, Any]:
            head("train")
            try:
                with long_run(progress, STOP_MESSAGE) as stop, Renderer(progress) as reporter:
                    result = run_training(config, reporter, stop)
            except SettingsMismatchError as error:
                name, library = pattern_set.name, pattern_set.library
                again = command_text("train", name, "--overwrite", library=library)
                raise SettingsMismatchError(f"{error.text} To start over: {again}") from None
            reporter.say(epochs_text(result.raw, is_new=reporter.has_trained))
            print_training(console, progress, result)
            return result.raw

        def keep_model(self, pattern_set: "PatternSet", results: dict[str, Any]) -> None:
            """The accuracy is printed even when there is nothing to do."""
            head("train")
            say_unchanged(progress, pattern_set, "no photos have been added or removed")
            progress.print()
            print_reached(console, results)

        def identify(self, given: IdentifySettings) -> "IdentifyResult":
            head("identify")
            with Renderer(progress) as reporter:
                result = identify_photos(replace(given, reporter=reporter))
            print_identified(console, progress, result)
            if result.counts["doubtful"] and not is_reviewed:
                say_how_to_review(progress, select(ReviewSettings, given))
            return result

        def review(self, given: ReviewSettings) -> None:
            head("review")
            review_and_print(console, given)

    return Shown()


COMMANDS = {
    "train": (train, _run_train),
    "evaluate": (evaluate, _run_evaluate),
    "flow": (run_flow, _run_flow),
}
