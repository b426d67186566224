"""`train_patterns`: from folders of photos to an evaluated model, in one call that can always be
repeated."""

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from clew.base.errors import InputError
from clew.base.progress import (
    Note,
    Reporter,
    StepStarted,
    ignore_event,
    log_event,
    report_work,
)
from clew.base.settings import offer_overwrite
from clew.base.texts import counted
from clew.base.urls import resolved
from clew.engine import (
    CategoricalLoss,
    FitResult,
    HardwarePlan,
    ModelMeasured,
    PlanRequest,
    TrainConfig,
    fit,
    plan_hardware,
)
from clew.engine.checkpoint import read_versions
from clew.engine.config import OpenBatches
from clew.engine.folders import CURVES, LAST, RESULT, draw_curves
from clew.engine.plan import limit_threads, look_at_machine
from clew.engine.planner import connect
from clew.engine.processes import first_does
from clew.engine.torchrun import count_processes, is_first_process
from clew.patterns.augment import AugmentConfig
from clew.patterns.augment.operations import decide_flip
from clew.patterns.cache.samples import ImageSamples, choose_place, open_images
from clew.patterns.features.fitting import FeaturePlan, fit_on_features, plan_features
from clew.patterns.networks import MANY_ON_GPU, build_network, usual_sizes
from clew.patterns.networks.classifier import PatternClassifier
from clew.patterns.networks.lite0 import fold_norms
from clew.patterns.photos import SPLITS, PhotoFolder, find_classes
from clew.patterns.results_file import RESULTS, describe_suspects
from clew.patterns.trained.model import PatternModel, read_results, softmax
from clew.patterns.trained.tables import EXCLUDED_FILE, write_predictions
from clew.patterns.training.config import (
    BODY_RATE,
    Measuring,
    PatternsConfig,
    Prepared,
    TrainingChoice,
)
from clew.patterns.training.measuring import (
    count_suspects,
    draw_photo_map,
    fit_temperature,
    fit_unknown,
    measure,
    measure_loss,
    run_split,
    write_results,
)
from clew.patterns.training.start import (
    NetworkChoice,
    RunFolder,
    Start,
    TrainingPhotos,
    choose_network,
    open_start,
    prepare_photos,
)
from clew.storage.mirror import open_folder
from clew.storage.working_copy import optional_copy, working_copy

# This many photos are used to decide on mirroring.
_LOOKED_AT = 2_000
# Short trainings, for this share of the epochs, try the augmentation; fewer validation photos could
# not tell.
_TRIED_SHARE, _FEWEST_TRIED, _FEWEST_JUDGES = 0.15, 3, 50
_AT_RATES = f", its body at {BODY_RATE:g} times the learning rate of its head"
_LOGGED = ("test_accuracy", "test_macro_f1", "test_loss", "test_ece", "val_accuracy", "temperature")


def train_patterns(
    config: PatternsConfig,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Trains a network on folders of photos and evaluates it; returns what results.json holds.
    Its folders may be at URLs: decoded photos are then read through the cache of this machine.

    The same call again resumes after a kill at any moment, or returns the finished result.
    Raises InputError for unusable photos and settings, SettingsMismatchError for a folder that
    belongs to another run, TrainingStoppedError when `should_stop` returns true. Under torchrun all
    processes must call; the first one decodes photos and writes files.
    """
    device = torch.device(connect(config.request))
    if config.start_from is not None and resolved(config.start_from) == resolved(config.out):
        raise InputError(
            f'`start_from` and `out` are both "{config.start_from}": give another `out`; the '
            "earlier model is kept."
        )
    # Sets the limit of the cache, on every machine.
    open_folder(config.images, cache_dir=config.cache_dir, cache_size=config.cache_size)
    with working_copy(config.out) as out, optional_copy(config.start_from) as start_from:
        here = replace(config, out=out, start_from=start_from, images_dir=config.images)
        with _fewer_threads(look_at_machine().cores):
            return _train(here, device, reporter or log_event, should_stop)


@contextmanager
def _fewer_threads(cores: int) -> Iterator[None]:
    """PyTorch and NumPy count the cores of the whole machine: in a container that may use fewer,
    more threads than these would wait for each other."""
    limit_threads(cores)
    has_more = any(
        pool["num_threads"] > cores for pool in threadpool_info() if pool["user_api"] == "blas"
    )
    with threadpool_limits(cores if has_more else None, user_api="blas"):
        yield


def _train(
    config: PatternsConfig,
    device: torch.device,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    started = time.monotonic()
    folder = RunFolder(config.out, overwrite=config.overwrite)
    on_gpu = device.type == "cuda"
    with folder.removed_if_refused():
        first_does(partial(folder.make, config.data))
        start = None if config.start_from is None else open_start(config.start_from)
        found = first_does(partial(find_classes, config.data))
        network = first_does(
            partial(choose_network, config, start, folder, on_gpu=on_gpu, reporter=reporter)
        )
        started_size = (folder.read_started() or {}).get("image_size")
        sizes = usual_sizes(
            network.name,
            len(found.photos),
            on_gpu=on_gpu,
            on_features=network.minutes is not None,
        )
        if isinstance(started_size, int):  # whatever the default was when the run was started
            sizes = (started_size, started_size)
        photos = first_does(
            partial(_prepare, found, config, folder, start, sizes, reporter, should_stop)
        )
        # The cache of this machine may be elsewhere.
        photos = replace(photos, cached=replace(photos.cached, cache_dir=config.cache_dir))
    spent = time.monotonic() - started
    task = _decide(config, network, photos, start, device, spent, reporter)
    with offer_overwrite():
        plan = None
        if task.tries and not (known := _known_augment(folder)):
            plan = task.measure(device)
            task = choose_augmentation(task, plan, device, reporter, should_stop)
        elif task.tries and known:
            task = replace(task, augment=replace(task.augment, **known))
        classifier = task.build()
        fitted = task.fit(classifier, reporter, should_stop, plan=plan)
    if is_first_process():
        reporter(Measuring())
    # A run that was already finished has not opened them yet.
    results = first_does(partial(_finish, task, classifier.to(device), fitted))
    if is_first_process():
        reporter(ModelMeasured(metrics={name: results.get(name) for name in _LOGGED}))
        if text := describe_suspects(results):
            reporter(Note(text))
    return results


def _prepare(
    found: PhotoFolder,
    config: PatternsConfig,
    folder: RunFolder,
    start: Start | None,
    sizes: tuple[int, int],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> TrainingPhotos:
    """Prepare the photos: the first process does the work for all of them."""
    photos = prepare_photos(
        found,
        config,
        start,
        sizes=sizes,
        check_size=folder.refuse_other_size,
        started=folder.read_splits(),
        reporter=reporter,
        should_stop=should_stop,
    )
    folder.begin(photos, config.data)
    if count := photos.copies_in_test:
        names = "is a near duplicate" if count == 1 else "are near duplicates"
        reporter(
            Note(
                f"{counted(count, 'test photo')} {names} of training photos: the test accuracy "
                f'will be too high. "clew patterns clean" lists them.'
            )
        )
    if count := photos.count_seen_before():
        reporter(
            Note(
                f"the starting weights were trained on {count:,} of the "
                f"{len(photos.places('test')):,} test photos: the test accuracy will be too high. "
                "For a fair test, put other photos into the test folder, or train without "
                "`start_from`."
            )
        )
    return photos


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training run with every setting decided."""

    out: Path
    network: NetworkChoice
    quick: FeaturePlan | None
    photos: TrainingPhotos
    samples: ImageSamples
    start: Start | None
    augment: AugmentConfig
    loss: CategoricalLoss
    train: TrainConfig
    request: PlanRequest
    # Whether the augmentation is one that the validation photos choose.
    tries: bool = False
    # Whether the last batch of an epoch is skipped if it is incomplete: a GPU would prepare its
    # kernels for that one, too, which takes longer than some epochs.
    drops_last: bool = False

    def build(self) -> PatternClassifier:
        """The initial network, the same for the same seed."""
        torch.manual_seed(self.train.seed)
        classes, known = self.photos.classes, LAST if self.quick is None else RESULT
        network = build_network(
            self.network.name,
            classes=len(classes),
            image_size=self.photos.size.value,
            # A run that is resumed has its own weights; feature maps are made by these.
            pretrained=self.network.pretrained and not (self.out / known).exists(),
        )
        if self.start is not None:
            self.start.load_into(network, classes)
        return PatternClassifier(
            network,
            classes=len(classes),
            loss=self.loss,
            augment=self.augment,
            body_rate=BODY_RATE if self.network.is_fine_tuned else 1.0,
        )

    def fit(
        self,
        model: PatternClassifier,
        reporter: Reporter,
        should_stop: Callable[[], bool],
        *,
        plan: HardwarePlan | None = None,
    ) -> FitResult:
        """Trains it, or resumes it, or loads its result when it is finished; measures how to unless
        there is a `plan`.

        The test photos are evaluated afterwards: with the model as it will be loaded.
        """
        common: dict[str, Any] = {
            "config": self.train,
            "request": self.request,
            "output_dir": self.out,
            "settings": self.identity,
            "reporter": reporter,
            "should_stop": should_stop,
        }
        photos = self.photos
        if self.quick is None:
            return fit(model, self.open("train"), self.open("validation"), plan=plan, **common)
        return fit_on_features(
            model,
            photos.cached,
            photos.labels,
            photos.splits,
            photos.cached.store.parent / "features",
            plan=self.quick,
            augment=self.augment,
            **common,
        )

    def open(self, split: str) -> OpenBatches:
        """Opens batches of the photos of a split."""
        drop_last = self.drops_last and split == "train"
        places = self.photos.places(split)
        return partial(open_images, samples=self.samples, places=places, drop_last=drop_last)

    def measure(self, device: torch.device) -> HardwarePlan:
        """The hardware plan of its training."""
        return plan_hardware(
            self.request,
            model=self.build(),
            open_batches=self.open("train"),
            config=self.train,
            device=device,
        )

    def load(self, classifier: PatternClassifier) -> PatternModel:
        """The model as it is used, before it is calibrated."""
        network = copy.deepcopy(classifier.network)
        fold_norms(network)
        return PatternModel(
            folder=self.out,
            classes=self.photos.classes,
            image_size=self.photos.size.value,
            network=network.eval(),
            temperature=1.0,
            device=next(classifier.parameters()).device,
            looks_closer=self.augment.is_cropping,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What identifies this run; `load_classifier` builds the network from it."""
        augment = asdict(self.augment)
        if not self.augment.is_cropping:  # as runs before there were crops
            del augment["crop"]
        return {
            "network": self.network.name,
            "classes": list(self.photos.classes),
            "image_size": self.photos.size.value,
            "pretrained": self.network.pretrained,
            "augment": augment,
            "loss": asdict(self.loss),
            "data": self.photos.identify(),
            "started_from": self.start.digest if self.start else None,
            **({"minutes": self.quick.minutes} if self.quick is not None else {}),
        }


def _decide(
    config: PatternsConfig,
    network: NetworkChoice,
    photos: TrainingPhotos,
    start: Start | None,
    device: torch.device,
    spent_seconds: float,
    reporter: Reporter,
) -> Task:
    """Decide what is left open, and report it with its reason. `spent_seconds` were over before, of
    the time that was asked for."""
    places, fine = photos.places("train"), network.is_fine_tuned
    count, processes = len(places), count_processes()
    place, why_place = choose_place(
        photos.cached.image_bytes, wanted=config.cache, device=device, processes=processes
    )
    cached = photos.cached
    samples = ImageSamples(
        cached.open_store(), cached.rows, photos.labels, place=place, device=device
    )
    train = config.train_for(count, on_gpu=device.type == "cuda", is_fine_tuned=fine)
    flip, why_flip = config.augment.flip, "as requested"
    if flip is None:
        some = places[np.sort(np.random.default_rng(0).permutation(count)[:_LOOKED_AT])]
        looking = StepStarted(name="finding out whether photos may be mirrored")
        with report_work(reporter if is_first_process() else ignore_event, looking):
            flip, why_flip = decide_flip(samples.read(some).cpu().numpy(), photos.labels[some])
    method = TrainingChoice(value=None, reason=f"the whole network{_AT_RATES if fine else ''}")
    quick = None
    if network.minutes is not None:
        quick = plan_features(
            len(cached.photos),
            photos.size.value,
            minutes=network.minutes,
            spent_seconds=spent_seconds,
        )
        method = TrainingChoice(value=quick.seconds, reason=quick.reason)
    about, counts = photos.describe(), Counter(photos.labels.tolist())
    prepared = Prepared(
        folder=photos.folder.root,
        classes={name: counts[label] for label, name in enumerate(photos.classes)},
        splits=about["splits"],
        excluded=about["excluded"],
        other_files=about["other_files"],
        excluded_file=config.out / EXCLUDED_FILE,
        image_size=photos.size,
        started_from=start.folder if start else None,
        new_classes=tuple(name for name in photos.classes if start and name not in start.classes),
        place=TrainingChoice(value=place, reason=why_place),
        flip=TrainingChoice(value=flip, reason=why_flip),
        epochs=TrainingChoice(value=train.epochs, reason=_why_epochs(config, count, fine=fine)),
        network=TrainingChoice(value=network.name, reason=network.reason),
        method=method,
    )
    if is_first_process():
        reporter(prepared)
    return Task(
        out=config.out,
        network=network,
        quick=quick,
        photos=photos,
        samples=samples,
        start=start,
        augment=config.augment_for(flip=flip, is_fine_tuned=fine),
        loss=config.loss.build(photos.count_classes("train")),
        train=train,
        request=config.request_for(count, is_fine_tuned=fine),
        drops_last=device.type == "cuda" and processes == 1,
        tries=config.tries_augmentations
        and fine
        and quick is None
        and device.type == "cuda"
        and processes == 1
        and count <= MANY_ON_GPU
        and len(photos.places("validation")) >= _FEWEST_JUDGES,
    )


def _known_augment(folder: RunFolder) -> dict[str, Any]:
    """What the run was started with, if it was."""
    known = (folder.read_started() or {}).get("augment") or {}
    return {name: known[name] for name in ("ops", "mixup") if name in known}


def choose_augmentation(
    task: Task,
    plan: HardwarePlan,
    device: torch.device,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> Task:
    """The task with the augmentation that is better on the validation photos, after a short
    training with each: RandAugment and Mixup help where photos are few and alike, and hurt where
    colors and small details make the difference."""
    lighter = replace(task, augment=replace(task.augment, ops=0, mixup=0.0))
    losses = [_try(one, plan, device, should_stop) for one in (lighter, task)]
    is_lighter = losses[0] <= losses[1]
    crops = f"random crops{' and mirroring' if task.augment.flip else ''}"
    shown = [f"{loss:.3f}" for loss in losses]
    what = f"{crops} alone" if is_lighter else f"RandAugment, Mixup and {crops}"
    reporter(
        Note(
            f"augmentation: {what}, because the validation loss after a short training is "
            f"{shown[0]} without RandAugment and Mixup, and {shown[1]} with both"
        )
    )
    return lighter if is_lighter else task


def _try(
    task: Task, plan: HardwarePlan, device: torch.device, should_stop: Callable[[], bool]
) -> float:
    """The loss on the validation photos after a short training."""
    epochs = max(_FEWEST_TRIED, round(_TRIED_SHARE * task.train.epochs))
    with tempfile.TemporaryDirectory() as folder:
        short = replace(
            task, out=Path(folder), train=replace(task.train, epochs=epochs, patience=None)
        )
        model = short.build()
        short.fit(model, ignore_event, should_stop, plan=plan)
        found = run_split(short.load(model.to(device)), task.photos, task.samples, "validation")
    labels = task.photos.labels[found.places]
    return measure_loss(found.logits, labels, fit_temperature(found.logits, labels))


def _why_epochs(config: PatternsConfig, count: int, *, fine: bool) -> str:
    photos = f"{count:,} training photos"
    if config.epochs is not None:
        return "requested with `epochs`"
    if config.start_from is not None:
        return f"fewer than usual for {photos}, because it does not start from scratch"
    return f"to fine-tune pretrained weights on {photos}" if fine else f"for {photos}"


def _finish(task: Task, classifier: PatternClassifier, fitted: FitResult) -> dict[str, Any]:
    """Evaluates the model and writes everything about it, results.json last: if that exists,
    everything does. Returns its content."""
    folder = task.out
    if (folder / RESULTS).exists():
        return read_results(folder, complete=True)
    photos = task.photos
    model = task.load(classifier)
    outputs = {split: run_split(model, photos, task.samples, split) for split in SPLITS}
    held_out = {split: outputs[split] for split in ("validation", "test")}
    labels = {split: photos.labels[one.places] for split, one in held_out.items()}
    temperature = fit_temperature(outputs["validation"].logits, labels["validation"])
    found = {split: softmax(one.logits, temperature) for split, one in held_out.items()}
    counts = {split: photos.count_classes(split) for split in SPLITS}
    reached = measure(found["test"], labels["test"], photos.classes, counts)
    reached["val_accuracy"] = float((found["validation"].argmax(1) == labels["validation"]).mean())
    reached["suspect_labels"] = sum(count_suspects(found[split], labels[split]) for split in found)
    unknown, about_unknown = fit_unknown(outputs, photos.labels, photos.classes, model.device)
    if unknown is not None:
        unknown.write(folder)
    draw_photo_map(folder, photos, task.samples, outputs, model.device)
    photos.write_tables(folder)  # names may have changed since the run was started
    tested = [photos.cached.photos[place] for place in photos.places("test")]
    named = [(photo.name, photo.label or "") for photo in tested]
    write_predictions(folder, named, photos.classes, found["test"])
    draw_curves(
        folder / CURVES,
        fitted.history,
        title=f"{task.network.name}, test accuracy {reached['test_accuracy']:.1%}",
        best_epoch=fitted.best_epoch,
        figure_name="accuracy",
    )
    described = _describe(task, fitted) | {"temperature": temperature, "unknown": about_unknown}
    return write_results(folder, {**reached, **described})


def _describe(task: Task, fitted: FitResult) -> dict[str, Any]:
    photos = task.photos
    return {
        "best_epoch": fitted.best_epoch,
        "epochs_run": len(fitted.history),
        "seconds": fitted.seconds,
        "images_per_second": fitted.samples_per_second,
        "data_wait_share": fitted.data_wait_share,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": fitted.parameters,
        "plan": fitted.plan.to_dict(),
        "image_size": photos.size.value,
        "network": task.network.name,
        "pretrained": task.network.pretrained,
        "augment": asdict(task.augment),
        "loss": asdict(task.loss),
        "train": asdict(task.train),
        "data": photos.describe(),
        "started_from": f"{task.start.folder}" if task.start else None,
        "seed": task.train.seed,
        "versions": read_versions("pillow"),
    }
