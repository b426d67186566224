"""clew train"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from clew.cli.compare import run_comparison
from clew.cli.long_runs import long_run, shown_log
from clew.cli.plan_flags import with_plan_flags
from clew.cli.printing import make_table, print_line
from clew.cli.renderer import Renderer
from clew.wording import duration_text

if TYPE_CHECKING:
    from clew.engine import PlanRequest
    from clew.hallucination.comparison import CompareConfig
    from clew.hallucination.detectors.training import TrainRunConfig

_EPILOG = "Example: `clew train --preprocessed-dir preprocessed_data --output-dir results`"
_DATA, _NETWORKS, _TRAINING = "Samples", "Networks", "Training"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(train)


@with_plan_flags()
def train(
    preprocessed_dir: Annotated[
        Path | None,
        typer.Option(
            help="Samples, as clew preprocess writes them. [default: preprocessed_data]",
            rich_help_panel=_DATA,
        ),
    ] = None,
    data_pattern: Annotated[
        str | None,
        typer.Option(
            help="Traces instead of samples: a store, or old files as `traces_data/*.pkl*`.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    scores_file: Annotated[
        Path | None,
        typer.Option(
            help="The scores of these traces, as clew label writes them.", rich_help_panel=_DATA
        ),
    ] = None,
    score_threshold: Annotated[
        float | None,
        typer.Option(
            help="Answers that score below count as made up (traces only). [default: 0.5]",
            rich_help_panel=_DATA,
        ),
    ] = None,
    output_dir: Annotated[
        Path, typer.Option(help="The folder for networks, logs, curves and results.json.")
    ] = Path("results"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start afresh where an earlier run was.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Afterwards compare all methods, these networks with five seeds of their own, "
            "in OUTPUT_DIR/compare.",
        ),
    ] = False,
    run_lstm: Annotated[
        bool, typer.Option(help="LSTM over the layers.", rich_help_panel=_NETWORKS)
    ] = True,
    run_gnn_det: Annotated[
        bool,
        typer.Option(help="GNN over the attention, then LSTM.", rich_help_panel=_NETWORKS),
    ] = True,
    run_gvae: Annotated[
        bool, typer.Option(help="Graph VAE, then LSTM.", rich_help_panel=_NETWORKS)
    ] = True,
    run_charm: Annotated[
        bool,
        typer.Option(
            help="CHARM: graph over all heads (of traces with --keep full).",
            rich_help_panel=_NETWORKS,
        ),
    ] = False,
    run_act_vit: Annotated[
        bool,
        typer.Option(help="ACT-ViT: layers and tokens as an image.", rich_help_panel=_NETWORKS),
    ] = False,
    lstm_hidden: Annotated[
        int | None,
        typer.Option(help="Width of the LSTM. [default: 128]", rich_help_panel=_NETWORKS),
    ] = None,
    num_lstm_layers: Annotated[
        int | None, typer.Option(help="Depth of the LSTM. [default: 2]", rich_help_panel=_NETWORKS)
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(help="Share that is dropped. [default: 0.2]", rich_help_panel=_NETWORKS),
    ] = None,
    gnn_hidden: Annotated[
        int | None,
        typer.Option(help="Width of the graph layers. [default: 64]", rich_help_panel=_NETWORKS),
    ] = None,
    latent_dim: Annotated[
        int | None,
        typer.Option(help="Width of the GVAE's latent. [default: 32]", rich_help_panel=_NETWORKS),
    ] = None,
    kl_weight: Annotated[
        float | None,
        typer.Option(
            help="Weight of the GVAE's KL loss. [default: 0.001]", rich_help_panel=_NETWORKS
        ),
    ] = None,
    reconstruction_weight: Annotated[
        float | None,
        typer.Option(
            help="Weight of the GVAE's reconstruction loss. [default: 0.1]",
            rich_help_panel=_NETWORKS,
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Times that all samples are seen.", rich_help_panel=_TRAINING)
    ] = 50,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate. [default: 0.001 * sqrt(batch / 32)]",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            help="Epochs without a better validation AUROC that end the run; 0 never ends it.",
            rich_help_panel=_TRAINING,
        ),
    ] = 10,
    focal_loss: Annotated[
        bool,
        typer.Option(
            "--focal-loss", help="Look more at what is still wrong.", rich_help_panel=_TRAINING
        ),
    ] = False,
    label_smoothing: Annotated[
        float, typer.Option(help="0.1 aims at 0.05 and 0.95.", rich_help_panel=_TRAINING)
    ] = 0.0,
    class_weights: Annotated[
        bool,
        typer.Option(
            "--class-weights", help="Let both classes weigh the same.", rich_help_panel=_TRAINING
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of weights, order and dropout.", rich_help_panel=_TRAINING)
    ] = 0,
    *,
    request: "PlanRequest",
) -> None:
    """Train detectors of made-up answers, one after another, and measure them on the test split.

    A run that was stopped or killed goes on where it was: give the same command. Under torchrun
    several processes train each network together, with the same results.
    """
    from clew.engine import TrainConfig
    from clew.hallucination.detectors.registry import NetworkSettings
    from clew.hallucination.detectors.training import LossSettings, TrainRunConfig

    wanted = {
        "lstm": run_lstm,
        "gnn_det": run_gnn_det,
        "gvae": run_gvae,
        "charm": run_charm,
        "act_vit": run_act_vit,
    }
    config = TrainRunConfig(
        preprocessed_dir=preprocessed_dir,
        data_pattern=data_pattern,
        scores_file=scores_file,
        score_threshold=score_threshold,
        output_dir=output_dir,
        networks=tuple(name for name, is_wanted in wanted.items() if is_wanted),
        network=NetworkSettings(
            lstm_hidden=lstm_hidden,
            num_lstm_layers=num_lstm_layers,
            dropout=dropout,
            gnn_hidden=gnn_hidden,
            latent_dim=latent_dim,
            kl_weight=kl_weight,
            reconstruction_weight=reconstruction_weight,
        ),
        loss=LossSettings(
            focal=focal_loss, label_smoothing=label_smoothing, class_weights=class_weights
        ),
        train=TrainConfig(epochs=epochs, lr=lr, patience=patience or None, seed=seed),
        request=request,
        overwrite=overwrite,
    )
    comparison = _plan_comparison(config) if compare else None
    _run(config)
    if comparison is not None:
        run_comparison(Console(highlight=False, soft_wrap=True), comparison)


def _plan_comparison(config: "TrainRunConfig") -> "CompareConfig":
    from clew.hallucination.comparison import CompareConfig

    return CompareConfig.after_training(config)


def _run(config: "TrainRunConfig") -> None:
    from clew.engine.processes import is_first_process
    from clew.hallucination.detectors.training import train_detectors

    console = Console(highlight=False, soft_wrap=True, quiet=not is_first_process())
    message = "everything is saved after this step"
    with (
        long_run(console, message, overwrite=config.overwrite) as stop,
        shown_log(console),
        Renderer(console) as reporter,
    ):
        runs = train_detectors(config, reporter, stop)
    _print_runs(console, config.output_dir, runs)


def _print_runs(console: Console, folder: Path, runs: Sequence[dict[str, Any]]) -> None:
    console.print()
    console.print(_results_table(runs))
    lines = (
        f"all figures: {folder / 'results.json'}",
        f"weights, log.csv, curves.png, tensorboard: {folder}/NETWORK "
        f"({', '.join(run['folder'] for run in runs)})",
    )
    for line in lines:
        print_line(console, line)


def _results_table(runs: Sequence[dict[str, Any]]) -> Table:
    table = make_table()
    table.add_column("network", no_wrap=True)
    for name in ("test AUROC", "F1", "accuracy", "best epoch", "samples/s", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
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
