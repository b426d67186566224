"""`train_patterns`: from folders of photos to a model that was measured, in one call that can
always be given again."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clew.engine.checkpoint import LAST
from clew.engine.folders import clear_run, make_folder
from clew.engine.planning.hardware import look_at_machine
from clew.engine.processes import count_processes, is_first_process
from clew.engine.together import connect, first_does
from clew.engine.trainer import only_one
from clew.errors import InputError
from clew.patterns.cache import choose_place
from clew.patterns.photos import SPLITS
from clew.patterns.trained.model import RESULTS
from clew.patterns.training.checks import refuse_other_photos, refuse_settings
from clew.patterns.training.config import PatternsConfig
from clew.patterns.training.finish import finish
from clew.patterns.training.photos import TrainingPhotos, TrainingSamples, prepare_photos
from clew.patterns.training.reporter import (
    Choice,
    LoggingPatternsReporter,
    PatternsReporter,
    Preparation,
)
from clew.patterns.training.start import Start, open_start
from clew.patterns.training.tables import (
    EARLIER_FILE,
    LEFT_OUT_FILE,
    PREDICTIONS_FILE,
    SPLITS_FILE,
)
from clew.patterns.training.task import Task, settle_augment, settle_network

REPORT = "report.html"
# What is only true of a finished run. results.json goes last: it tells whose the others are.
_FOLLOWS = (PREDICTIONS_FILE, REPORT, RESULTS)
_TABLES = (SPLITS_FILE, EARLIER_FILE, LEFT_OUT_FILE)


def train_patterns(
    config: PatternsConfig,
    reporter: PatternsReporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train a network on folders of photos and measure it; gives what results.json holds.

    The same call again goes on after a kill at any moment, or gives the finished result. Raises
    InputError for photos and settings that cannot be used, SettingsMismatchError for a folder
    that belongs to another run, TrainingStoppedError when `should_stop` says yes. Under torchrun
    all processes must call; the first one decodes photos and writes files.
    """
    reporter = reporter or LoggingPatternsReporter()
    device = torch.device(connect(config.request))
    with _no_folder_if_refused(config.output_dir):
        first_does(partial(_open_folder, config))
        start = open_start(config)
        photos = _prepare(config, start, reporter, should_stop)
    task, told = _decide(config, start, photos, device)
    if is_first_process():
        reporter.prepared(told)
    classifier = task.build()
    fitted = task.fit(classifier, reporter, should_stop)
    if is_first_process():
        reporter.measuring()
    # One whose training was over already has not been there yet.
    return first_does(partial(finish, task, classifier.to(device), fitted))


@contextmanager
def _no_folder_if_refused(folder: Path) -> Iterator[None]:
    """A set would take an empty folder for a training that was begun."""
    was_there = folder.exists()
    try:
        yield
    except InputError:
        if not was_there:
            with suppress(OSError):  # something is in it
                folder.rmdir()
        raise


def _open_folder(config: PatternsConfig) -> None:
    refuse_settings(config)
    make_folder(config.output_dir)


def _prepare(
    config: PatternsConfig,
    start: Start | None,
    reporter: PatternsReporter,
    should_stop: Callable[[], bool],
) -> TrainingPhotos:
    """By the first process for all of them."""

    def prepare() -> TrainingPhotos:
        photos = prepare_photos(
            config,
            start,
            workers=look_at_machine().cores,
            reporter=reporter,
            should_stop=should_stop,
        )
        with only_one(config.output_dir):  # a run under way keeps its tables
            if config.overwrite:
                clear_run(config.output_dir, *_FOLLOWS, *_TABLES)
            refuse_other_photos(config, photos)
            _begin_tables(config.output_dir, photos)
        _warn_of_test(photos, reporter)
        return photos

    return first_does(prepare)


def _begin_tables(folder: Path, photos: TrainingPhotos) -> None:
    """At the beginning of a run: who looks at it sees what was found before it is trained."""
    if (folder / LAST).exists() and (folder / SPLITS_FILE).exists():
        return
    if not (folder / LAST).exists() and (folder / RESULTS).exists():  # of a run that is gone
        for name in _FOLLOWS:
            (folder / name).unlink(missing_ok=True)
    photos.write_tables(folder)


def _warn_of_test(photos: TrainingPhotos, reporter: PatternsReporter) -> None:
    count = photos.count_learnt_before()
    if count:
        reporter.say(
            f"{count:,} of the {len(photos.places('test')):,} test photos were learnt from by the "
            f"weights that are begun with: the test accuracy will be too good. To measure fairly, "
            f"put others into the test folder, or train without --start-from."
        )


def _decide(
    config: PatternsConfig, start: Start | None, photos: TrainingPhotos, device: torch.device
) -> tuple[Task, Preparation]:
    """What is left open is decided, and told with its reason."""
    place, why = choose_place(
        photos.cached.image_bytes,
        wanted=config.cache,
        device=device,
        processes=count_processes(),
    )
    samples = TrainingSamples(photos, place, device)
    augment, flip = settle_augment(config.augment, samples)
    on_gpu = device.type == "cuda"
    network = settle_network(config, start, on_gpu=on_gpu)
    task = Task(
        config=config,
        network=network.value,
        photos=photos,
        samples=samples,
        start=start,
        augment=augment,
        train=config.train_for(len(photos.places("train")), on_gpu=on_gpu),
    )
    return task, _tell(task, network, Choice(value=place, reason=why), flip)


def _tell(task: Task, network: Choice, place: Choice, flip: Choice) -> Preparation:
    photos, start = task.photos, task.start
    counts = Counter(photos.classes[label] for label in photos.labels.tolist())
    about = photos.describe()
    return Preparation(
        folder=photos.folder.root,
        classes={name: counts[name] for name in photos.classes},
        splits={split: about["splits"][split] for split in SPLITS},
        left_out=about["left_out"],
        other_files=about["other_files"],
        left_out_file=task.config.output_dir / LEFT_OUT_FILE,
        image_size=photos.size,
        place=place,
        flip=flip,
        epochs=Choice(value=task.train.epochs, reason=_why_epochs(task)),
        network=network,
        started_from=start.folder if start else None,
        new_classes=tuple(name for name in photos.classes if start and name not in start.classes),
    )


def _why_epochs(task: Task) -> str:
    if task.config.epochs is not None:
        return "as asked for with --epochs"
    count = len(task.photos.places("train"))
    if task.start is not None:
        return f"fewer than usual for {count:,} training photos: it does not begin from scratch"
    return f"for {count:,} training photos"
