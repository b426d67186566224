"""Trains detectors one after another, and keeps what they reached in results.json."""

from collections.abc import Callable
from functools import partial

from clew.engine import FitResult, HardwarePlan, plan_hardware
from clew.engine.curves import draw_curves
from clew.engine.folders import CURVES, clear_run, make_folder
from clew.engine.together import connect, first_does
from clew.engine.trainer import only_one
from clew.errors import TrainingStoppedError
from clew.hallucination.detectors.registry import find_networks
from clew.hallucination.detectors.training.config import TrainRunConfig
from clew.hallucination.detectors.training.events import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.results import ResultsFile, Run
from clew.hallucination.detectors.training.samples import DetectorSamples
from clew.hallucination.detectors.training.sources import open_source
from clew.hallucination.detectors.training.task import Task
from clew.memory import free_memory
from clew.progress import Reporter, log_event


def train_detectors(
    config: TrainRunConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Run]:
    """Train the config's networks and write results.json after each; gives its entries for them.

    The same call again goes on where the last one was; a finished network is not trained again.
    What cannot be used raises InputError before anything is trained, a folder that belongs to
    another run SettingsMismatchError; TrainingStoppedError comes when `should_stop` says yes.
    Under torchrun all processes must call.
    """
    reporter = reporter or log_event
    connect(config.request)
    tasks = _prepare(config)
    runs = []
    for number, task in enumerate(tasks, start=1):
        if should_stop():
            raise TrainingStoppedError(
                f"stopped before {task.kind.title} was begun; the same command goes on with it."
            )
        reporter(NetworkStarted(title=task.kind.title, number=number, count=len(tasks)))
        run, is_new = _train(task, reporter, should_stop)
        reporter(NetworkEnded(run=run, is_new=is_new))
        runs.append(run)
        if all(later.samples is not task.samples for later in tasks[number:]):
            task.samples.let_go()
        free_memory()
    return runs


def plan_models(config: TrainRunConfig) -> dict[str, HardwarePlan]:
    """The plan that each network's training would begin with, measured on its samples."""
    plans = {}
    for task in _open_tasks(config):
        plans[task.kind.name] = plan_hardware(
            config.request,
            model=task.build(),
            open_batches=task.samples.open_later("train"),
            samples=task.samples.balance["train"].samples,
            config=config.train,
        )
        free_memory()
    return plans


def _train(task: Task, reporter: Reporter, should_stop: Callable[[], bool]) -> tuple[Run, bool]:
    """The network's entry of results.json, and whether it was not there before."""
    results = ResultsFile(task.config.output_dir)
    saved = results.find(task.kind.name) if task.is_finished else None
    fitted = task.fit(reporter, should_stop)
    if saved is not None:
        return saved, False
    run = task.describe(fitted)
    first_does(partial(_record, task, fitted, run, results))
    return run, True


def _record(task: Task, fitted: FitResult, run: Run, results: ResultsFile) -> None:
    auroc = "" if run["test_auroc"] is None else f", test AUROC {run['test_auroc']:.3f}"
    draw_curves(
        task.folder / CURVES,
        fitted.history,
        title=f"{task.kind.title}{auroc}",
        best_epoch=fitted.best_epoch,
    )
    results.add(run, data=task.samples.describe(), settings=task.config.describe())


def _prepare(config: TrainRunConfig) -> list[Task]:
    """All that can be refused is refused here, before the first network is trained."""
    tasks = _open_tasks(config)
    first_does(partial(make_folder, config.output_dir))
    results = ResultsFile(config.output_dir)
    anew = config.networks if config.overwrite else ()
    results.refuse_other_data(tasks[0].samples.describe(), anew)
    if config.overwrite:
        first_does(partial(_clear, tasks, results))
    return tasks


def _open_tasks(config: TrainRunConfig) -> list[Task]:
    kinds = find_networks(config.networks)
    source = open_source(config)
    source.refuse_missing(kinds)
    opened = {needed: DetectorSamples(source, needed) for needed in {k.samples for k in kinds}}
    return [
        Task.open(config, kind, opened[kind.samples], config.output_dir / kind.name)
        for kind in kinds
    ]


def _clear(tasks: list[Task], results: ResultsFile) -> None:
    """Raises StoreLockedError rather than take away what another run is writing."""
    for task in tasks:
        with only_one(task.folder):
            results.remove([task.kind.name])
            clear_run(task.folder)
