"""Train detectors one after another: several networks with a common results.json, or one network
from several seeds."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from clew.base.errors import InputError, TrainingStoppedError
from clew.base.memory import free_memory
from clew.base.progress import Reporter, log_event
from clew.engine import FitResult, HardwarePlan, plan_hardware
from clew.engine.feed import load_settings
from clew.engine.folders import CURVES, clear_run, make_folder, only_one
from clew.engine.logs import draw_curves
from clew.engine.planning.planner import connect
from clew.engine.processes import count_restarts, first_does
from clew.hallucination.detectors.kept import DETECTOR_JSON
from clew.hallucination.detectors.loading import KEPT, load_detector
from clew.hallucination.detectors.registry import find_networks
from clew.hallucination.detectors.training.config import TrainingSettings, TrainRunConfig
from clew.hallucination.detectors.training.events import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.keeping import keep_network
from clew.hallucination.detectors.training.samples import DetectorSamples, Scores, score_batches
from clew.hallucination.detectors.training.sources import DataSource
from clew.hallucination.detectors.training.task import RESULTS_FILE, ResultsFile, Run, Task
from clew.storage.working_copy import working_copy

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
    tasks = _open_tasks(config.networks, source, config.training, out)
    # What was overwritten when torchrun first started these processes is resumed now.
    results = _prepare_results(tasks, overwrite=config.overwrite and not count_restarts())

    def train(task: Task) -> Run:
        saved = results.find(task.kind.name) if task.is_finished else None
        fitted = task.fit(reporter, should_stop)
        run = task.describe(fitted) if saved is None else saved
        if saved is None:
            first_does(partial(_record, task, fitted, run, results))
        first_does(partial(keep_network, task, fitted, source, reporter))
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
    source, training = config.open_source(), config.training
    for task in _open_tasks(config.networks, source, training, config.out):
        plans[task.kind.name] = plan_hardware(
            training.request,
            model=task.build(),
            open_batches=task.samples.open_later("train"),
            samples=task.samples.balance["train"].samples,
            config=training.train,
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
    return [Task.open(kind, training, opened[kind.samples], output_dir) for kind in kinds]


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
                task.samples.let_go()
            free_memory()
    finally:
        for task in tasks:
            task.samples.let_go()
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
            results.remove([task.kind.name])
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
            task.clear()


def _train_seed(task: Task, reporter: Reporter, should_stop: Callable[[], bool]) -> TrainedSeed:
    is_new = not task.is_finished
    fitted = task.fit(reporter, should_stop)
    reporter(NetworkEnded(run=task.describe(fitted), is_new=is_new))
    detector = load_detector(task.folder, fitted.plan.device)
    settings = load_settings(fitted.plan)
    # Validation comes first, so that one-time costs of the device are not counted.
    validation = score_batches(detector, task.samples.open_whole("validation", settings))
    begun = time.perf_counter()
    test = score_batches(detector, task.samples.open_whole("test", settings))
    return TrainedSeed(
        seed=task.training.train.seed,
        validation=validation,
        test=test,
        val_auroc=fitted.best_val["auroc"] or 0.0,
        fitted=fitted,
        score_seconds=time.perf_counter() - begun,
    )
