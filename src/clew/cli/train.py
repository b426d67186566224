"""clew train"""

from typing import TYPE_CHECKING

from rich.console import Console

from clew.base.texts import duration_text
from clew.cli.commands import Call, read_command
from clew.cli.compare import print_result as print_comparison
from clew.cli.printing import print_line, print_table
from clew.engine.torchrun import is_first_process
from clew.hallucination.workflow import train

if TYPE_CHECKING:
    from clew.hallucination.workflow.training import TrainingResult

COMMAND = read_command(train)


def run(call: Call) -> None:
    call.progress.quiet |= not is_first_process()
    result = call.run(train)
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
    _print_results(call.console, result)
    networks = ", ".join(run["folder"] for run in result.runs)
    print_line(call.console, f"all metrics: {result.path / 'results.json'}")
    print_line(
        call.progress,
        f"weights, log.csv, curves.png, TensorBoard logs: {result.path}/NETWORK ({networks})",
    )


def _print_results(console: Console, result: "TrainingResult") -> None:
    rows = [
        (
            run["title"],
            *(_figure(run[name]) for name in ("test_auroc", "test_f1", "test_accuracy")),
            f"{run['best_epoch']} of {run['epochs_run']}",
            f"{run['samples_per_second']:,.0f}",
            duration_text(run["seconds"]),
        )
        for run in result.runs
    ]
    heads = ("network", "test AUROC", "F1", "accuracy", "best epoch", "samples/s", "time")
    print_table(console, heads, rows, numbers=range(1, 7))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
