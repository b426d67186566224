"""Train networks on samples, compare all methods on them, and plan how that would use a machine."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clew.base import urls
from clew.base.commands import Cached, Hardware, TrainingHardware, Watched, select, takes
from clew.base.errors import InputError
from clew.base.progress import Reporter, log_event
from clew.base.settings import as_path, check_exists, check_folders, check_writable
from clew.base.tables import Tabular
from clew.base.texts import counted, split_names
from clew.base.urls import is_url, local_path
from clew.hallucination.workflow.preparing import OnCluster, load_libraries
from clew.storage.run_file import UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    import pyarrow as pa

    from clew.cluster.workers import Spread
    from clew.engine import HardwarePlan
    from clew.engine.plan import Machine
    from clew.hallucination.comparison import CompareConfig, ComparisonResult
    from clew.hallucination.detectors import Detector


_FIGURES = ("test_auroc", "test_f1", "test_accuracy", "best_epoch", "epochs_run", "seconds")


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(Tabular):
    """The result of `clew.train`, with one row per network. `path` is the output folder, `runs` are
    the entries of results.json, `comparison` is the comparison that followed, if any."""

    path: Path
    runs: tuple[dict[str, Any], ...]
    comparison: "ComparisonResult | None" = None

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics of each network, by name: its entry in results.json."""
        return {run["model"]: run for run in self.runs}

    @property
    def table(self) -> "pa.Table":
        import pyarrow

        rows = [
            {"network": run["model"], **{name: run[name] for name in _FIGURES}} for run in self.runs
        ]
        return pyarrow.Table.from_pylist(rows)

    def detector(self, network: str) -> "Detector":
        """The trained network, ready to score samples."""
        from clew.hallucination.detectors import load_detector

        return load_detector(self.path / self.metrics[network]["folder"])

    def __repr__(self) -> str:
        figures = ", ".join(
            f"{run['title']}: test AUROC {_figure(run['test_auroc'])}" for run in self.runs
        )
        return f"TrainingResult({figures}; {self.path})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Plans:
    """This machine, and the plan that each network's training would start with."""

    machine: "Machine"
    plans: dict[str, "HardwarePlan"]

    def as_dict(self) -> dict[str, Any]:
        plans = {name: made.to_dict() for name, made in self.plans.items()}
        return {"machine": asdict(self.machine), "plans": plans}

    def __repr__(self) -> str:
        gpus = "".join(f", {gpu.name}" for gpu in self.machine.gpus)
        plans = "; ".join(
            f"{name}: {made.device}, {made.precision}, batch size {made.batch_size:,}"
            for name, made in self.plans.items()
        )
        return f"Plans({counted(self.machine.cores, 'CPU core')}{gpus}; {plans})"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


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
        keep_at_chance: Keep a network as a detector even if it is not shown to be better than
            chance: fewer than 10 answers of a class, or an interval of the validation AUROC that
            reaches 0.5. Every use of it says so.
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
    keep_at_chance: bool = False
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


@repeatable(
    "train",
    always=("preprocessed_dir", "out"),
    unrecorded=("overwrite", "keep_at_chance", "threads"),
)
@takes(TrainSettings)
def train(given: TrainSettings) -> TrainingResult:
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
    from clew.engine import PlanRequest, TrainConfig
    from clew.hallucination.comparison import CompareConfig
    from clew.hallucination.detectors.registry import NetworkSettings
    from clew.hallucination.detectors.training.settings import (
        SAMPLES_FOLDER,
        LossSettings,
        TrainRunConfig,
    )
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
    check_exists("scores_file", config.scores_file)
    check_writable("out", config.out)
    if config.data_pattern is None:
        check_folders(config.preprocessed_dir or SAMPLES_FOLDER)
    elif not (Path(config.data_pattern).exists() or glob(str(config.data_pattern))):
        raise InputError(
            "nothing matches it: give a store, or legacy files such as traces_data/*.pkl.",
            setting="data_pattern",
            value=config.data_pattern,
        )
    report = given.reporter or log_event
    load_libraries(report)
    from clew.base.cpu import watch_cores
    from clew.engine.tracking import tracked
    from clew.hallucination.detectors.training.train import train_detectors

    watching = watch_cores(report, given.device)
    with tracked(watching, given.log_to) as events:
        runs = train_detectors(config, events, given.should_stop)
    comparison = run_comparison(follows, watching, given.should_stop) if follows else None
    return TrainingResult(path=config.out, runs=tuple(runs), comparison=comparison)


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Hardware, OnCluster, Cached, Watched):
    """What `compare` takes.

    Args:
        preprocessed_dir: Folder of samples that "clew preprocess" wrote, or its URL. [default:
            preprocessed_data]
        out: Folder for the table, the scores, the networks and the report.
        methods: Methods to compare, such as "perplexity,linear_probe,lstm"; baselines, untrained,
            probes and networks name a family. [default: all, except those of other packages]
        seeds: Number of seeds for methods with randomness.
        overwrite: Rerun the selected methods instead of resuming.
        keep_detectors: Keep the best method on validation as a detector in OUT/detector, keep all
            methods that read the model in OUT/detectors/METHOD as well, or none.
        keep_at_chance: Keep a detector even if it is not shown to be better than chance: fewer than
            10 answers of a class, or an interval of the validation AUROC that reaches 0.5. Every
            use of it says so.
        engine: What will run the detector that is kept: clew's own engine, or vLLM. Methods that
            need more than it gives, such as attention, are excluded.
        train_on: Folders of samples to train and select on: on each alone, or with `union` on all
            together.
        test_on: Folders of samples to evaluate on. One that is not trained on is evaluated on all
            of its answers.
        union: Train on all folders of `train_on` together.
        stores: Folders of samples, one per question set: evaluate each with detectors that were
            trained on the others.
        name: Names of the question sets, in the order of the folders, such as "facts,trivia".
            [default: those under which they were captured]
        by_set: Do the same with the question sets in one folder, such as all built-in ones that
            were captured together: the part of the question IDs before the slash names the set.
        pairs: With several sets, also train on each alone and evaluate it on each.
        folds: Evaluate every answer once, in this many folds by question, for small sets; 0
            evaluates the test split.
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better validation AUROC; 0 disables early
            stopping.
        cluster: Fit several methods at once on Ray: ray (the cluster of RAY_ADDRESS, one that runs
            here, or a new one on this machine) or ray://host:port. Requires "clew[ray]".
    """

    preprocessed_dir: str | Path | None = None
    out: Annotated[str | Path, UrlNeverFromFile] = "comparison"
    methods: str | Sequence[str] | None = None
    seeds: int = 5
    overwrite: bool = False
    keep_detectors: Literal["best", "all", "none"] = "best"
    keep_at_chance: bool = False
    engine: Literal["clew", "vllm"] = "clew"
    train_on: Sequence[str | Path] = ()
    test_on: Sequence[str | Path] = ()
    union: bool = False
    stores: Sequence[str | Path] = ()
    name: str | Sequence[str] | None = None
    by_set: bool = False
    pairs: bool = True
    folds: int = 0
    epochs: int = 50
    patience: int = 10


@repeatable(
    "compare",
    always=("preprocessed_dir", "out"),
    unrecorded=("overwrite", "keep_detectors", "keep_at_chance", "cluster", "workers", "threads"),
)
@takes(CompareSettings)
def compare(given: CompareSettings) -> "ComparisonResult":
    """Compare all detection methods on the same split; write a report and a table with confidence
    intervals.

    The layer, the threshold and the best method are selected on validation answers; test answers
    are used only for the final evaluation. Run the same command again to resume a comparison
    that was stopped or killed.

    Returns:
        The comparison: `table` (one row per method), `best` (the name of the best method) and
        `report` (the path of the page). Notebooks display it as a table.

    Raises:
        InputError: The samples or a setting cannot be used.
        SettingsMismatchError: The folder holds a comparison with different settings.
        StoreError: A folder is incomplete or damaged, or another run is writing into it.
        StoppedError: `should_stop` returned True; everything so far is saved.

    Examples:
        >>> comparison = clew.compare(preprocessed_dir="preprocessed_data")
        >>> comparison.to_pandas()
    """
    from clew.engine import PlanRequest, TrainConfig
    from clew.hallucination.comparison import CompareConfig, choose_folders
    from clew.hallucination.samples.index import open_samples

    open_cached = partial(open_samples, cache_dir=given.cache_dir, cache_size=given.cache_size)
    samples = given.preprocessed_dir
    fit_on, measure_on = choose_folders(
        preprocessed_dir=None if samples is None else open_cached(samples),
        train_on=[open_cached(folder) for folder in given.train_on],
        test_on=[open_cached(folder) for folder in given.test_on],
        stores=[open_cached(folder) for folder in given.stores],
    )
    config = select(
        CompareConfig,
        given,
        train_on=fit_on,
        test_on=measure_on,
        out=local_path(given.out),
        methods=None if given.methods is None else split_names(given.methods),
        train=select(TrainConfig, given, patience=given.patience or None),
        request=select(PlanRequest, given),
        names=_split(given.name),
    )
    where = given.spread(threads=given.threads, device=given.device)
    check_folders(*fit_on, *measure_on)
    check_writable("out", config.out)
    report = given.reporter or log_event
    load_libraries(report)
    from clew.base.cpu import watch_cores

    return run_comparison(config, watch_cores(report, given.device), given.should_stop, where)


def _split(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names as they are written, unlike those of methods."""
    parts = (names or "").split(",") if isinstance(names, str | None) else names
    return tuple(stripped for part in parts if (stripped := part.strip()))


def run_comparison(
    config: "CompareConfig",
    reporter: Reporter | None,
    should_stop: Callable[[], bool],
    where: "Spread | None" = None,
) -> "ComparisonResult":
    """Compare, and write the report with a page per mistake that it lists."""
    from clew.hallucination.answer_page.run import show_mistakes
    from clew.hallucination.comparison import compare_methods
    from clew.hallucination.comparison.report import write_report

    comparison = compare_methods(config, reporter, should_stop, where)
    show_mistakes(config.out, config.test_on[0], reporter)
    write_report(config.out)
    return comparison


@dataclass(frozen=True, kw_only=True)
class PlanSettings(TrainingHardware):
    """What `plan` takes.

    Args:
        preprocessed_dir: Folder of samples to benchmark on, written by "clew preprocess".
        epochs: Number of epochs of the planned run.
    """

    preprocessed_dir: str | Path | None = None
    epochs: int = 50


@takes(PlanSettings)
def plan(given: PlanSettings) -> "Plans":
    """Show how training would use this machine (device, precision, batch size, ...), and why.

    With samples, each network is benchmarked on them for a few seconds, as "clew train" does at
    startup. Without samples, the plan shows which choices would be measured.

    Returns:
        `machine`, and `plans`: one `HardwarePlan` per network (with samples) or for "all networks",
        with a reason for every choice.

    Raises:
        InputError: The samples or a setting cannot be used.

    Examples:
        >>> clew.plan().plans["all networks"].reasons["precision"]
    """
    from clew.engine import PlanRequest, TrainConfig

    config, request = TrainConfig(epochs=given.epochs), select(PlanRequest, given)
    check_folders(given.preprocessed_dir)
    from clew.engine.plan import look_at_machine
    from clew.engine.planner import plan_hardware

    machine = look_at_machine()
    if given.preprocessed_dir is None:
        made = plan_hardware(request, config=config, machine=machine)
        return Plans(machine=machine, plans={"all networks": made})
    from clew.hallucination.detectors.training.settings import TrainRunConfig
    from clew.hallucination.detectors.training.train import plan_models

    folder = Path(given.preprocessed_dir)
    plans = plan_models(TrainRunConfig(preprocessed_dir=folder, train=config, request=request))
    return Plans(machine=machine, plans=plans)
