"""clew train"""

from typing import TYPE_CHECKING

from rich.table import Table

from clew.base.texts import duration_text
from clew.cli.commands import Call, read_command
from clew.cli.compare import print_result as print_comparison
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.cli.signals import long_run, shown_log
from clew.hallucination.workflow import train

if TYPE_CHECKING:
    from clew.hallucination.workflow.results import TrainingResult

COMMAND = read_command(train)


def run(call: Call) -> None:
    from clew.engine.processes import is_first_process

    call.progress.quiet |= not is_first_process()
    message = "everything is saved after this step"
    with (
        long_run(call.progress, message, overwrite=call.settings["overwrite"]) as stop,
        shown_log(call.progress),
        Renderer(call.progress) as reporter,
    ):
        result = train(**call.settings, reporter=reporter, should_stop=stop)
    if not is_first_process():
        return
    if call.as_json:
        call.print_json(
            {
                "networks": result.runs,
                "comparison": result.comparison and result.comparison.results,
            }
        )
        return
    _print(call, result)
    if result.comparison is not None:
        print_comparison(call, result.comparison)


def _print(call: Call, result: "TrainingResult") -> None:
    call.progress.print()
    call.console.print(_results_table(result))
    networks = ", ".join(run["folder"] for run in result.runs)
    print_line(call.console, f"all metrics: {result.path / 'results.json'}")
    print_line(
        call.progress,
        f"weights, log.csv, curves.png, TensorBoard logs: {result.path}/NETWORK ({networks})",
    )


def _results_table(result: "TrainingResult") -> Table:
    table = make_table()
    table.add_column("network", no_wrap=True)
    for name in ("test AUROC", "F1", "accuracy", "best epoch", "samples/s", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in result.runs:
        table.add_row(
            run["title"],
            *(_figure(run[name]) for name in ("test_auroc", "test_f1", "test_accuracy")),
            f"{run['best_epoch']} of {run['epochs_run']}",
            f"{run['samples_per_second']:,.0f}",
            duration_text(run["seconds"]),
        )
    return table


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
