"""From samples to trained networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base import urls
from clew.base.commands import Cached, TrainingHardware, Watched, select, takes
from clew.base.progress import log_event
from clew.base.settings import as_path
from clew.base.texts import split_names
from clew.base.urls import is_url
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.hallucination.workflow.results import TrainingResult


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainingHardware, Cached, Watched):
    """What `train` takes.

    Args:
        preprocessed_dir: Folder of samples that "clew preprocess" or the original preprocessing
            wrote, or its URL. [default: preprocessed_data]
        data_pattern: Traces to train on instead of samples: a store, or legacy files such as
            "traces_data/*.pkl*".
        scores_file: Scores of these traces, as "clew label" writes them.
        score_threshold: Answers that score below this count as hallucinated (traces only).
            [default: 0.5]
        higher_is: Meaning of a high score (traces only). [default: inferred from the column name]
        out: Folder for the networks, logs, curves and results.json, or its URL.
        overwrite: Start over instead of resuming.
        compare: After training, compare all methods, with five seeds per network, in OUT/compare.
        networks: Networks to train: lstm, gnn_det, gvae, charm, act_vit.
        lstm_hidden: Hidden size of the LSTM. [default: 128]
        num_lstm_layers: Number of LSTM layers. [default: 2]
        dropout: Dropout probability. [default: 0.2]
        gnn_hidden: Hidden size of the graph layers. [default: 64]
        latent_dim: Latent size of the GVAE. [default: 32]
        kl_weight: Weight of the GVAE's KL loss. [default: 0.001]
        reconstruction_weight: Weight of the GVAE's reconstruction loss. [default: 0.1]
        epochs: Maximum number of epochs.
        lr: Peak learning rate. [default: 0.001 * sqrt(batch / 32)]
        patience: Stop after this many epochs without a better validation AUROC; 0 disables early
            stopping.
        focal_loss: Use focal loss, which puts more weight on samples that are still misclassified.
        label_smoothing: Label smoothing: 0.1 changes the targets 0 and 1 to 0.05 and 0.95.
        class_weights: Weight the classes inversely to their frequency, so that both count equally.
        seed: Seed for weights, sample order and dropout.
        log_to: Log settings and metrics of each network to Weights & Biases or MLflow.
        cache_dir: Folder for what is downloaded from a URL, or converted from legacy samples.
            [default: the user's cache folder]
    """

    preprocessed_dir: str | Path | None = None
    data_pattern: str | None = None
    scores_file: str | Path | None = None
    score_threshold: float | None = None
    higher_is: Literal["correct", "hallucinated"] | None = None
    out: Annotated[str | Path, UrlNeverFromFile] = "results"
    overwrite: bool = False
    compare: bool = False
    networks: str | Sequence[str] = ("lstm", "gnn_det", "gvae")
    lstm_hidden: int | None = None
    num_lstm_layers: int | None = None
    dropout: float | None = None
    gnn_hidden: int | None = None
    latent_dim: int | None = None
    kl_weight: float | None = None
    reconstruction_weight: float | None = None
    epochs: int = 50
    lr: float | None = None
    patience: int = 10
    focal_loss: bool = False
    label_smoothing: float = 0.0
    class_weights: bool = False
    seed: int = 0
    log_to: Literal["wandb", "mlflow"] | None = None


@repeatable("train", always=("preprocessed_dir", "out"), unrecorded=("overwrite", "threads"))
@takes(TrainSettings)
def train(given: TrainSettings) -> "TrainingResult":
    """Train hallucination detectors and evaluate them on the test split.

    Run the same command again to resume a run that was stopped or killed. With torchrun, several
    processes train each network together; `batch_size` is the global batch size.

    Returns:
        The metrics of each network, and `detector("lstm")`, which loads one.

    Raises:
        InputError: The samples or a setting cannot be used.
        SettingsMismatchError: The folder contains a run with different settings.
        StoreError: The samples are incomplete or damaged, or another run is writing into the
            folder.
        TrainingError: Training cannot continue: non-finite values, out of memory, or a process
            that torchrun started has ended.
        StoppedError: `should_stop` returned True; everything so far is saved.

    Examples:
        >>> results = clew.train(preprocessed_dir="preprocessed_data", networks=["lstm"])
        >>> results.metrics["lstm"]["test_auroc"]
    """
    from clew.base.cpu import watch_cores
    from clew.engine import PlanRequest, TrainConfig
    from clew.engine.tracking import tracked
    from clew.hallucination.comparison import CompareConfig
    from clew.hallucination.detectors.registry import NetworkSettings
    from clew.hallucination.detectors.training.settings import LossSettings, TrainRunConfig
    from clew.hallucination.detectors.training.train import train_detectors
    from clew.hallucination.workflow.comparing import run_comparison
    from clew.hallucination.workflow.results import TrainingResult
    from clew.storage.mirror import open_folder

    open_cached = partial(open_folder, cache_dir=given.cache_dir, cache_size=given.cache_size)
    samples, traces = given.preprocessed_dir, given.data_pattern
    config = select(
        TrainRunConfig,
        given,
        preprocessed_dir=None if samples is None else open_cached(samples),
        data_pattern=open_cached(traces) if traces and is_url(traces) else traces,
        scores_file=as_path(given.scores_file),
        out=urls.as_path(given.out),
        networks=split_names(given.networks),
        network=select(NetworkSettings, given),
        loss=select(LossSettings, given, focal=given.focal_loss),
        train=select(TrainConfig, given, patience=given.patience or None),
        request=select(PlanRequest, given),
    )
    # Rejected now rather than after hours of training.
    follows = CompareConfig.after_training(config) if given.compare else None
    watching = watch_cores(given.reporter or log_event, given.device)
    with tracked(watching, given.log_to) as report:
        runs = train_detectors(config, report, given.should_stop)
    comparison = run_comparison(follows, watching, given.should_stop) if follows else None
    return TrainingResult(path=config.out, runs=tuple(runs), comparison=comparison)
