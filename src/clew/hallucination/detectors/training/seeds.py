"""One network trained from several seeds, and what each of them makes of every sample."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from clew.engine import FitResult
from clew.engine.folders import make_folder
from clew.engine.sources import load_settings
from clew.engine.together import connect, first_does
from clew.errors import InputError, TrainingStoppedError
from clew.hallucination.detectors.detector import load_detector
from clew.hallucination.detectors.registry import find_networks
from clew.hallucination.detectors.training.config import TrainRunConfig
from clew.hallucination.detectors.training.events import NetworkEnded, NetworkStarted
from clew.hallucination.detectors.training.samples import DetectorSamples
from clew.hallucination.detectors.training.scoring import Scores, score_batches
from clew.hallucination.detectors.training.sources import open_source
from clew.hallucination.detectors.training.task import Task
from clew.memory import free_memory
from clew.progress import Reporter, log_event


@dataclass(frozen=True, kw_only=True)
class SeedScores:
    """Probabilities of being made up, in the order of the data sets; `score_seconds` is how long
    those of the test split took, reading included."""

    seed: int
    validation: Scores
    test: Scores
    val_auroc: float
    fitted: FitResult
    score_seconds: float


def train_seeds(
    config: TrainRunConfig,
    network: str,
    seeds: Sequence[int],
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[SeedScores]:
    """Train one network from each seed, into `NETWORK/seed-K` of the config's output folder.

    The same call again goes on where the last one was; a finished seed is only scored. The plan is
    measured for the first seed, the others follow it: they differ in nothing else. What is raised,
    and when, is as `train_detectors` has it.
    """
    reporter = reporter or log_event
    connect(config.request)
    tasks = _open_tasks(config, network, seeds)
    first_does(partial(_prepare, tasks))
    found: list[SeedScores] = []
    try:
        for number, task in enumerate(tasks, start=1):
            if found:
                task = task.follow(found[0].fitted.plan)
            if should_stop():
                raise TrainingStoppedError(f"stopped before {_title(task)} was begun.")
            reporter(NetworkStarted(title=_title(task), number=number, count=len(tasks)))
            found.append(_train(task, reporter, should_stop))
            free_memory()
    finally:
        tasks[0].samples.let_go()
    return found


def _open_tasks(config: TrainRunConfig, network: str, seeds: Sequence[int]) -> list[Task]:
    """One a seed, over samples that are opened once."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"the seeds are {list(seeds)}: give one or more, each once.")
    [kind] = find_networks([network])
    source = open_source(config)
    source.refuse_missing([kind])
    samples = DetectorSamples(source, kind.samples)
    return [
        Task.open(
            replace(config, train=replace(config.train, seed=seed)),
            kind,
            samples,
            config.output_dir / kind.name / f"seed-{seed}",
        )
        for seed in seeds
    ]


def _prepare(tasks: list[Task]) -> None:
    make_folder(tasks[0].config.output_dir)
    if tasks[0].config.overwrite:
        for task in tasks:
            task.clear()


def _train(task: Task, reporter: Reporter, should_stop: Callable[[], bool]) -> SeedScores:
    is_new = not task.is_finished
    fitted = task.fit(reporter, should_stop)
    reporter(NetworkEnded(run=task.describe(fitted), is_new=is_new))
    detector = load_detector(task.folder, fitted.plan.device)
    settings = load_settings(fitted.plan)
    # Validation comes first: what a device does only once is then not counted.
    validation = score_batches(detector, task.samples.open_whole("validation", settings))
    begun = time.perf_counter()
    test = score_batches(detector, task.samples.open_whole("test", settings))
    return SeedScores(
        seed=task.config.train.seed,
        validation=validation,
        test=test,
        val_auroc=fitted.best_val["auroc"] or 0.0,
        fitted=fitted,
        score_seconds=time.perf_counter() - begun,
    )


def _title(task: Task) -> str:
    return f"{task.kind.title}, seed {task.config.train.seed}"
