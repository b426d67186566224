"""clew compare"""

from typing import TYPE_CHECKING

import typer

from clew.base.terminal import TextConsole
from clew.cli.commands import Call, Command
from clew.cli.comparison_table import print_comparison
from clew.cli.completion import METHODS, suggest_list
from clew.cli.errors import with_flags
from clew.cli.long_runs import long_run, shown_log
from clew.cli.options import CACHE, HARDWARE, Spelling
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.hallucination.workflow import compare

if TYPE_CHECKING:
    from clew.hallucination.comparison import ComparisonResult

COMMAND = Command(
    function=compare,
    example="clew compare --preprocessed-dir preprocessed_data --output-dir comparison",
    groups={
        "Input and output": ("preprocessed_dir", "out", "keep_detectors", "overwrite"),
        "Methods": ("methods", "seeds", "epochs", "patience"),
        "Transfer between question sets": (
            *("stores", "by_set", "train_on", "test_on", "name", "pairs"),
        ),
        "Small question sets": ("folds",),
        "Cluster": ("cluster", "workers"),
        **HARDWARE,
        **CACHE,
    },
    spelling=Spelling(
        kinds={"methods": str, "name": str},
        metavars={"methods": "A,B,...", "name": "A,B,...", "cluster": "ray|ray://HOST:PORT"},
        completions={"methods": suggest_list(*METHODS)},
        takes_rest="stores",
    ),
    has_json=True,
    is_resumable=True,
)


def register(app: typer.Typer) -> None:
    COMMAND.register(app, run)


def run(call: Call) -> None:
    message = "finished methods are kept; the current network stops after this step"
    with (
        long_run(call.progress, message, overwrite=call.settings["overwrite"]) as stop,
        shown_log(call.progress),
        Renderer(call.progress) as reporter,
    ):
        comparison = compare(**call.settings, reporter=reporter, should_stop=stop)
    if call.as_json:
        call.print_json(comparison.results)
    print_result(call, comparison)


def print_result(call: Call, comparison: "ComparisonResult") -> None:
    """Print the table and the path of the report; exit with 1 if a method failed because of a bug
    in clew."""
    if not call.as_json:
        call.progress.print()
        print_comparison(call.console, comparison.folder, comparison.results)
        metrics = comparison.folder / "results.json"
        call.progress.print()
        print_line(
            call.progress, f"all metrics: {metrics} (also table.csv, table.tex, scores.arrow)"
        )
        kept = comparison.results["detectors"].get(comparison.best)
        if kept is not None:
            print_line(call.progress, f"detector: {comparison.folder / kept}")
        print_line(call.console, f"report: {comparison.report}")
    if comparison.faults:
        _complain_faults(comparison)


def _complain_faults(comparison: "ComparisonResult") -> None:
    names = ", ".join(dict.fromkeys(one.title for one in comparison.faults))
    console = TextConsole(stderr=True, soft_wrap=True)
    text = f"clew: {names}: {with_flags(comparison.faults[0].reason)}. Please report this bug."
    print_line(console, text)
    raise typer.Exit(1)
