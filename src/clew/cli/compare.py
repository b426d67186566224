"""clew compare"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from clew.cli.comparison_table import print_comparison
from clew.cli.errors import with_flags
from clew.cli.long_runs import long_run, shown_log
from clew.cli.plan_flags import with_plan_flags
from clew.cli.printing import print_line
from clew.cli.renderer import Renderer
from clew.errors import InputError

if TYPE_CHECKING:
    from clew.engine import PlanRequest
    from clew.hallucination.comparison import CompareConfig, ComparisonResult

_EPILOG = "Example: `clew compare --preprocessed-dir preprocessed_data --output-dir comparison`"
_TRANSFER, _NETWORKS = "Transfer", "Networks"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(compare)


@with_plan_flags(without=("no_channels_last", "grad_accum", "gradient_checkpointing"))
def compare(
    preprocessed_dir: Annotated[
        Path | None,
        typer.Option(help="Samples, as clew preprocess writes them. [default: preprocessed_data]"),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option(help="The folder for the table, the scores, the networks, the report.")
    ] = Path("comparison"),
    methods: Annotated[
        str | None,
        typer.Option(help="Which ones, as `perplexity,linear_probe,lstm`. [default: all]"),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Times that what depends on chance is trained.")] = 5,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Run these methods anew where they were run before.")
    ] = False,
    train_on: Annotated[
        list[Path] | None,
        typer.Option(
            help="Fit and choose on these samples; repeatable.", rich_help_panel=_TRANSFER
        ),
    ] = None,
    test_on: Annotated[
        list[Path] | None,
        typer.Option(help="Measure on these; repeatable.", rich_help_panel=_TRANSFER),
    ] = None,
    stores: Annotated[
        list[Path] | None,
        typer.Option(
            help="Every pair of these samples, as `--stores A B C`.", rich_help_panel=_TRANSFER
        ),
    ] = None,
    more_stores: Annotated[list[Path] | None, typer.Argument(hidden=True, metavar="STORE")] = None,
    epochs: Annotated[
        int, typer.Option(help="Times that all samples are seen.", rich_help_panel=_NETWORKS)
    ] = 50,
    patience: Annotated[
        int,
        typer.Option(
            help="Epochs without a better validation AUROC that end a training; 0 never ends it.",
            rich_help_panel=_NETWORKS,
        ),
    ] = 10,
    *,
    request: "PlanRequest",
) -> None:
    """Run every method on the same split: a table with intervals, and a report.

    Layer, threshold and the best method are chosen on validation; the test split only measures.
    A comparison that was stopped or killed goes on where it was: give the same command.
    """
    from clew.engine import TrainConfig
    from clew.hallucination.comparison import CompareConfig, choose_folders

    if more_stores and not stores:
        raise InputError(
            f'"{more_stores[0]}" stands by itself: give folders with --preprocessed-dir, or '
            f"several with --stores."
        )
    fit_on, measure_on = choose_folders(
        preprocessed_dir=preprocessed_dir,
        train_on=train_on or [],
        test_on=test_on or [],
        stores=[*(stores or []), *(more_stores or [])],
    )
    config = CompareConfig(
        train_on=fit_on,
        test_on=measure_on,
        output_dir=output_dir,
        methods=None if methods is None else split_names(methods),
        seeds=seeds,
        train=TrainConfig(epochs=epochs, patience=patience or None),
        request=request,
        overwrite=overwrite,
    )
    console = Console(highlight=False, soft_wrap=True)
    run_comparison(console, config)


def run_comparison(console: Console, config: "CompareConfig") -> None:
    """Run it, show the table and say where the report is; exits 1 when a method broke by a fault
    of clew."""
    from clew.hallucination.comparison import compare_methods
    from clew.hallucination.comparison.report import write_report

    message = "what is finished is kept, a network stops after this step"
    with (
        long_run(console, message, overwrite=config.overwrite) as stop,
        shown_log(console),
        Renderer(console) as reporter,
    ):
        comparison = compare_methods(config, reporter, stop)
    print_comparison(console, config.output_dir, comparison.results)
    report = write_report(config.output_dir)
    _say_where(console, config.output_dir, report)
    if comparison.faults:
        _complain_faults(comparison)


def split_names(text: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b"); dashes do for underscores."""
    parts = (part.strip().replace("-", "_") for part in text.split(","))
    return tuple(part for part in parts if part)


def _say_where(console: Console, folder: Path, report: Path) -> None:
    lines = (
        f"all figures: {folder / 'results.json'} (also table.csv, table.tex, scores.arrow)",
        f"report: {report}",
    )
    console.print()
    for line in lines:
        print_line(console, line)


def _complain_faults(comparison: "ComparisonResult") -> None:
    names = ", ".join(dict.fromkeys(one.title for one in comparison.faults))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    text = f"clew: {names}: {with_flags(comparison.faults[0].reason)}. Please report it."
    print_line(console, text)
    raise typer.Exit(1)
