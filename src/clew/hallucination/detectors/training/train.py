"""One network to train: its samples, loss and folder; and results.json with the results and
settings of every network in an output folder."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import torch

from clew.base.errors import (
    ClewError,
    InputError,
    SettingsMismatchError,
    StoreError,
    TrainingStoppedError,
)
from clew.base.memory import free_memory
from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import offer_overwrite, with_current_names
from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as, without_nan
from clew.engine import BinaryLoss, Classifier, FitResult, HardwarePlan, fit, plan_hardware
from clew.engine.checkpoint import read_versions
from clew.engine.feed import load_settings
from clew.engine.folders import CURVES, LAST, RESULT, clear_run, draw_curves, make_folder, only_one
from clew.engine.planner import connect
from clew.engine.processes import first_does
from clew.engine.torchrun import count_restarts
from clew.hallucination.detectors.calibration import (
    MORE_ANSWERS,
    Companions,
    make_detector,
    measure_chance,
)
from clew.hallucination.detectors.detector import Detector, unfold
from clew.hallucination.detectors.detector_folder import load_detector, save_detector
from clew.hallucination.detectors.folder import DETECTOR_JSON, KEPT
from clew.hallucination.detectors.registry import NETWORKS, NetworkKind, configure, find_networks
from clew.hallucination.detectors.training.samples import (
    DataSource,
    DetectorSamples,
    PreprocessedData,
    Scores,
    read_sizes,
    score_batches,
)
from clew.hallucination.detectors.training.settings import (
    NetworkEnded,
    NetworkStarted,
    TrainingSettings,
    TrainRunConfig,
)
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.mixed import number_groups
from clew.loading.order import Rank
from clew.metrics.calibration import PlattScale
from clew.metrics.measures import best_threshold, measure_scores
from clew.storage.place import ChangedError
from clew.storage.reading import read_json
from clew.storage.working_copy import working_copy
from clew.storage.writing import lock_file, replace_json

RESULTS_FILE = "results.json"
# An additional dependency of networks on graphs.
LIBRARY = "torch-geometric"

Run = dict[str, Any]
# What a run with another seed takes from the plan of the first one.
_PLANNED = (
    *("device", "precision", "compile", "cuda_graph", "channels_last"),
    *("num_workers", "batch_size", "grad_accum", "threads"),
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One network to train, with its own folder per `seed` if there are several.
    `network_config` holds its hyperparameters, including the dimensions of the samples."""

    kind: NetworkKind
    network_config: Any
    training: TrainingSettings
    samples: DetectorSamples
    output_dir: Path
    seed: int | None = None

    def seeded(self, seed: int) -> Self:
        train = replace(self.training.train, seed=seed)
        return replace(self, training=replace(self.training, train=train), seed=seed)

    @property
    def place(self) -> str:
        """Its folder, relative to the output folder."""
        return self.kind.name if self.seed is None else f"{self.kind.name}/seed-{self.seed}"

    @property
    def title(self) -> str:
        return self.kind.title if self.seed is None else f"{self.kind.title}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        return self.output_dir / self.place

    @property
    def is_finished(self) -> bool:
        return (self.folder / LAST).exists() and (self.folder / RESULT).exists()

    @property
    def loss(self) -> BinaryLoss:
        return self.training.loss.build(self.samples.positive_weight)

    def build(self) -> Classifier:
        """The untrained network, the same for the same seed."""
        torch.manual_seed(self.training.train.seed)
        return Classifier(self.kind.network(self.network_config), self.loss)

    def fit(self, reporter: Reporter, should_stop: Callable[[], bool]) -> FitResult:
        """Train the network, resume its training, or return the result if it is finished."""
        with offer_overwrite():
            return fit(
                self.build(),
                self.samples.open_later("train"),
                self.samples.open_later("validation"),
                test=self.samples.open_later("test"),
                config=self.training.train,
                request=self.training.request,
                output_dir=self.folder,
                settings=self._identity(),
                reporter=reporter,
                should_stop=should_stop,
            )

    def follow(self, plan: HardwarePlan) -> Self:
        """The same task with everything planned: it is trained as the plan says."""
        planned = {name: getattr(plan, name) for name in _PLANNED}
        request = replace(
            self.training.request, **planned, amp=None, calibrate=False, reasons=plan.reasons
        )
        return replace(self, training=replace(self.training, request=request))

    def score(self, detector: Detector, fitted: FitResult, split: str) -> Scores:
        """The risks that the trained network gives to the answers of a split."""
        settings = load_settings(fitted.plan)
        return score_batches(detector, self.samples.open(split, settings, Rank()))

    def _identity(self) -> dict[str, Any]:
        """What identifies this run; `load_detector` builds the network from it."""
        return {
            "network": self.kind.name,
            "network_config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "data": {**self.samples.describe(), "values": self.samples.hash_values()},
        }

    def describe(self, fitted: FitResult) -> Run:
        """The entry of results.json."""
        test = fitted.test or {}
        return {
            "model": self.kind.name,
            "title": self.kind.title,
            **{f"test_{name}": test.get(name) for name in ("auroc", "f1", "accuracy", "loss")},
            "best_val_auroc": fitted.best_val.get("auroc"),
            "threshold": fitted.threshold,
            "best_epoch": fitted.best_epoch,
            "epochs_run": len(fitted.history),
            "parameters": fitted.parameters,
            "seconds": fitted.seconds,
            "samples_per_second": fitted.samples_per_second,
            "data_wait_share": fitted.data_wait_share,
            "peak_memory_bytes": fitted.peak_memory_bytes,
            "seed": self.training.train.seed,
            "folder": self.place,
            "config": asdict(self.network_config),
            "loss": asdict(self.loss),
            "train": asdict(self.training.train),
            "plan": fitted.plan.to_dict(),
            "versions": read_versions(LIBRARY),
        }


class ResultsFile:
    """The runs of an existing folder, one per network; adding one keeps the others."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS_FILE

    def find(self, model: str) -> Run | None:
        return next((run for run in self._read()["runs"] if run["model"] == model), None)

    def refuse_other_data(self, data: dict[str, Any], retrained: Iterable[str]) -> None:
        """Raise SettingsMismatchError if the runs to be kept used other samples: all rows of a
        table must be evaluated on the same ones."""
        saved = self._read()
        stay = [run["model"] for run in saved["runs"] if run["model"] not in set(retrained)]
        if not stay or saved["data"] == data:
            return
        before, now = (_describe(described) for described in (saved["data"], data))
        raise SettingsMismatchError(
            f'"{self.path.parent}" has results of {" and ".join(stay)} on different samples: '
            f"{before} before, {now} now. Choose another `out`, or train all of them again with "
            "`overwrite=True`."
        )

    def add(self, run: Run, *, data: dict[str, Any], settings: dict[str, Any]) -> None:
        """Replace an earlier run of the same network."""

        def add(saved: dict[str, Any]) -> dict[str, Any]:
            runs = {old["model"]: old for old in saved["runs"]} | {run["model"]: run}
            ordered = [runs.pop(name) for name in NETWORKS if name in runs]
            return {"runs": [*ordered, *runs.values()], "data": data, "settings": settings}

        self._change(add)

    def remove(self, model: str) -> None:
        def remove(saved: dict[str, Any]) -> dict[str, Any]:
            return {**saved, "runs": [run for run in saved["runs"] if run["model"] != model]}

        self._change(remove)

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Under a lock on this machine, and again where a process on another one was faster:
        another network may be training into the same folder."""
        with lock_file(self.path.parent / ".results.lock"):
            while (content := change(saved := self._read())) != saved:
                ordered = {name: content[name] for name in ("runs", "data", "settings")}
                with suppress(ChangedError):
                    replace_json(self.path, {**ordered, "versions": read_versions(LIBRARY)})
                    return

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"runs": [], "data": {}, "settings": {}}
        try:
            content = read_as(
                dict[str, Any], without_nan(read_json(self.path, finite=False, encodable=False))
            )
            runs = read_as(list[dict[str, Any]], content.get("runs"), "runs")
            for run in runs:
                read_as(Annotated[str, Bounds(most=100)], run.get("model"), "model")
            data = with_current_names(read_as(dict[str, Any], content.get("data"), "data"))
        except (OSError, ValueError) as error:
            raise StoreError(
                f'"{self.path}" cannot be read ({error}): delete it and run the same command '
                "again to re-create it (the trained networks are kept), or choose another `out`."
            ) from None
        return {"settings": {}, **content, "data": data}


def _describe(data: dict[str, Any]) -> str:
    counts = [
        f"{name} {sum(count for count in of.values() if isinstance(count, int)):,}"
        for name, of in data.items()
        if isinstance(of, dict)
    ]
    return f"{', '.join(counts)} (questions {shortened(data.get('questions', 'unknown'))})"


def keep_network(
    task: Task,
    fitted: FitResult,
    source: DataSource,
    reporter: Reporter,
    *,
    keep_at_chance: bool = False,
) -> None:
    """Write the network's folder `detector`, if it has none. A note says why if that is not
    possible (its files are there, but nothing says which model the samples come from), or if the
    network may be guessing: it is kept with `keep_at_chance` only."""
    folder = task.folder / KEPT
    if (folder / DETECTOR_JSON).exists():
        return
    try:
        if not isinstance(source, PreprocessedData):
            raise ClewError('its samples are traces: create samples with "clew preprocess" first')
        made = _make(task, fitted, source.folder)
        if made.warning and not keep_at_chance:
            raise ClewError(f"{made.warning}. {MORE_ANSWERS}")
        save_detector(made, folder)
    except ClewError as error:
        reporter(Note(f"{task.title} is not kept as a detector: {error}"))


def _make(task: Task, fitted: FitResult, samples: Path) -> Detector:
    trained = load_detector(task.folder, fitted.plan.device)
    validation, test = (unfold(task.score(trained, fitted, s)) for s in ("validation", "test"))
    labels = {name: split.index.labels > 0.5 for name, split in task.samples.splits.items()}
    calibration = PlattScale.fit(labels["validation"], validation)
    risks = calibration.probabilities(validation)
    threshold = best_threshold(labels["validation"], risks)
    measures = measure_scores(
        labels["test"], calibration.probabilities(test), threshold=threshold, scores=test
    )
    results: dict[str, Any] = {f"test_{k}": v for k, v in asdict(measures).items()}
    answers = AnswerFeatures(samples)
    clusters = number_groups(answers, "validation")
    results |= measure_chance(labels["train"], labels["validation"], validation, clusters)
    method = Detector(
        name=task.kind.name,
        title=task.kind.title,
        calibration=calibration,
        threshold=threshold,
        metrics={**results, "threshold": threshold, "parameters": fitted.parameters},
        network=trained.network.cpu(),
        config=trained.config,
    )
    return make_detector(method, Companions.fit(answers))


Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class TrainedSeed:
    """The risks that a network trained with one seed predicts, in the order of the datasets.
    `score_seconds` is the time to score the test split, including reading it."""

    seed: int
    validation: Scores
    test: Scores
    val_auroc: float
    fitted: FitResult
    score_seconds: float


def train_detectors(
    config: TrainRunConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Run]:
    """Train the config's networks and write results.json after each; returns its entries for them.
    The same call again resumes; a finished network is not trained again. Unusable input raises
    InputError before anything is trained, a folder that belongs to another run
    SettingsMismatchError; `should_stop` returning true raises TrainingStoppedError. Under torchrun
    all processes must call this.
    """
    connect(config.request)
    with working_copy(config.out) as out:
        return _train_networks(config, out, reporter or log_event, should_stop)


def _train_networks(
    config: TrainRunConfig, out: Path, reporter: Reporter, should_stop: Callable[[], bool]
) -> list[Run]:
    source = config.open_source()
    tasks = _open_tasks(config.networks, source, config, out)
    # What was overwritten when torchrun first started these processes is resumed now.
    results = _prepare_results(tasks, overwrite=config.overwrite and not count_restarts())

    def train(task: Task) -> Run:
        saved = results.find(task.kind.name) if task.is_finished else None
        fitted = task.fit(reporter, should_stop)
        run = saved or task.describe(fitted)
        if saved is None:
            first_does(partial(_record, task, fitted, run, results))
        keep = partial(keep_network, keep_at_chance=config.keep_at_chance)
        first_does(partial(keep, task, fitted, source, reporter))
        reporter(NetworkEnded(run=run, is_new=saved is None))
        return run

    return _train_each(tasks, train, reporter, should_stop)


def train_seeds(
    network: str,
    source: DataSource,
    training: TrainingSettings,
    output_dir: Path,
    seeds: Sequence[int],
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[TrainedSeed]:
    """Train one network from each seed, into `NETWORK/seed-K` of the output folder.

    The same call again resumes; a finished seed is only scored. The plan is measured for the first
    seed and used for all others. Raises the same errors as `train_detectors`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"the seeds are {list(seeds)}: give one or more different seeds.")
    reporter = reporter or log_event
    connect(training.request)
    [task] = _open_tasks([network], source, training, output_dir)
    tasks = [task.seeded(seed) for seed in seeds]
    first_does(partial(_prepare_seeds, tasks, overwrite=overwrite))
    plan: HardwarePlan | None = None

    def train(task: Task) -> TrainedSeed:
        nonlocal plan
        trained = _train_seed(task if plan is None else task.follow(plan), reporter, should_stop)
        plan = plan or trained.fitted.plan
        return trained

    return _train_each(tasks, train, reporter, should_stop)


def plan_models(config: TrainRunConfig) -> dict[str, HardwarePlan]:
    """The plan that each network's training would start with, measured on its samples."""
    plans = {}
    for task in _open_tasks(config.networks, config.open_source(), config, config.out):
        plans[task.kind.name] = plan_hardware(
            config.request,
            model=task.build(),
            open_batches=task.samples.open_later("train"),
            samples=task.samples.balance["train"].samples,
            config=config.train,
        )
        free_memory()
    return plans


def _open_tasks(
    networks: Iterable[str], source: DataSource, training: TrainingSettings, output_dir: Path
) -> list[Task]:
    """One per network, on samples that are opened once. Everything that can be rejected is rejected
    here, before the first network is trained."""
    kinds = find_networks(networks)
    source.refuse_missing(kinds)
    opened = {needed: DetectorSamples(source, needed) for needed in {k.samples for k in kinds}}
    sizes = {needed: read_sizes(samples.splits["train"]) for needed, samples in opened.items()}
    return [
        Task(
            kind=kind,
            network_config=configure(kind, sizes[kind.samples], training.network),
            training=training,
            samples=opened[kind.samples],
            output_dir=output_dir,
        )
        for kind in kinds
    ]


def _train_each(
    tasks: Sequence[Task],
    train: Callable[[Task], Found],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Found]:
    """Train each task; samples that no later task reads are removed from the GPU."""
    found = []
    try:
        for number, task in enumerate(tasks, start=1):
            if should_stop():
                raise TrainingStoppedError(
                    f"stopped before {task.title}; everything so far is saved."
                )
            reporter(NetworkStarted(title=task.title, number=number, count=len(tasks)))
            found.append(train(task))
            if all(later.samples is not task.samples for later in tasks[number:]):
                task.samples.release()
            free_memory()
    finally:
        for task in tasks:
            task.samples.release()
    return found


def _prepare_results(tasks: Sequence[Task], *, overwrite: bool) -> ResultsFile:
    folder = tasks[0].output_dir
    names = (RESULTS_FILE, *(task.folder.name for task in tasks))
    first_does(partial(make_folder, folder, *names, command="train"))
    results = ResultsFile(folder)
    retrained = [task.kind.name for task in tasks] if overwrite else ()
    results.refuse_other_data(tasks[0].samples.describe(), retrained)
    if overwrite:
        first_does(partial(_clear, tasks, results))
    return results


def _clear(tasks: Iterable[Task], results: ResultsFile) -> None:
    """Remove the results and files of the tasks. Raises StoreLockedError if another run is writing
    them."""
    for task in tasks:
        with only_one(task.folder):
            results.remove(task.kind.name)
            clear_run(task.folder, f"{KEPT}/{DETECTOR_JSON}")


def _record(task: Task, fitted: FitResult, run: Run, results: ResultsFile) -> None:
    auroc = "" if run["test_auroc"] is None else f", test AUROC {run['test_auroc']:.3f}"
    draw_curves(
        task.folder / CURVES,
        fitted.history,
        title=f"{task.title}{auroc}",
        best_epoch=fitted.best_epoch,
    )
    results.add(run, data=task.samples.describe(), settings=task.training.describe())


def _prepare_seeds(tasks: Sequence[Task], *, overwrite: bool) -> None:
    make_folder(tasks[0].output_dir)
    if overwrite:
        for task in tasks:
            with only_one(task.folder):
                clear_run(task.folder)


def _train_seed(task: Task, reporter: Reporter, should_stop: Callable[[], bool]) -> TrainedSeed:
    is_new = not task.is_finished
    fitted = task.fit(reporter, should_stop)
    reporter(NetworkEnded(run=task.describe(fitted), is_new=is_new))
    detector = load_detector(task.folder, fitted.plan.device)
    # Validation comes first, so that one-time costs of the device are not counted.
    validation = task.score(detector, fitted, "validation")
    begun = time.perf_counter()
    test = task.score(detector, fitted, "test")
    return TrainedSeed(
        seed=task.training.train.seed,
        validation=validation,
        test=test,
        val_auroc=fitted.best_val["auroc"] or 0.0,
        fitted=fitted,
        score_seconds=time.perf_counter() - begun,
    )
