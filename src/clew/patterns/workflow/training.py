"""From folders of photos to a trained classifier, and its accuracy on other photos."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clew.base.errors import ClewError, InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path, read_size
from clew.patterns.library.folders import LIBRARY, SET_FILE
from clew.storage.run_file import UrlNeverFromFile, has_same_settings, repeatable

if TYPE_CHECKING:
    from clew.patterns.augment import AugmentConfig
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.library.pattern_set import PatternSet
    from clew.patterns.training import PatternsConfig


_OUT = "trained"
# Settings that say where a set is and who watches its training, not how it is trained.
_NOT_OF_TRAINING = ("name", "library", "log_to", "cache_dir", "cache_size")


def _find_unchanged(
    settings: Mapping[str, Any], recorded: Mapping[str, Any]
) -> "ClassifierResult | None":
    """The set's newest model if neither its photos nor the settings have changed since; a run with
    `data` is resumed by its own folder."""
    from clew.patterns.library.pattern_set import PatternSet

    given = [settings[name] for name in ("data", "out", "start_from")]
    if settings["overwrite"] or any(value is not None for value in given):
        return None
    try:
        pattern_set = PatternSet.open(settings["name"], Path(settings["library"]))
    except ClewError:
        return None  # the run itself says what is wrong
    model = pattern_set.latest_model()
    is_done = (
        model is not None
        and model == pattern_set.all_runs()[-1]
        and not pattern_set.changed_since(model)
        and has_same_settings(model, recorded, besides=_NOT_OF_TRAINING)
    )
    return _newest(pattern_set) if is_done else None


@repeatable(
    "patterns train",
    folder=lambda result: result.path if result.is_new else None,
    unrecorded=("overwrite", "threads"),
    find_done=_find_unchanged,
)
def train(
    data: str | Path | None = None,
    *,
    name: str | None = None,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    overwrite: bool = False,
    start_from: str | Path | None = None,
    log_to: Literal["wandb", "mlflow"] | None = None,
    library: str | Path = LIBRARY,
    split: str = "70/10/20",
    image_size: int | None = None,
    cache: Literal["auto", "ram", "disk"] = "auto",
    network: str | None = None,
    pretrained: bool = False,
    from_scratch: bool = False,
    epochs: int | None = None,
    minutes: float | None = None,
    lr: float | None = None,
    patience: int | None = None,
    weight_decay: float = 0.0001,
    warmup: float = 0.1,
    focal_loss: bool = False,
    label_smoothing: float = 0.1,
    class_weights: bool = False,
    augment: bool = True,
    rand_augment: str | None = None,
    mixup: float | None = None,
    crop: float | None = None,
    flip: bool | None = None,
    seed: int = 0,
    device: str | None = None,
    amp: bool | None = None,
    compile: bool | None = None,
    cuda_graph: bool | None = None,
    channels_last: bool | None = None,
    num_workers: int | None = None,
    batch_size: int | None = None,
    grad_accum: int | None = None,
    gradient_checkpointing: bool = False,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    cache_size: str | int | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "ClassifierResult":
    """Train a photo classifier and evaluate it on photos that it has not seen.

    Photos are decoded once; files that cannot be used are listed in excluded.csv. Run the same
    command again to resume a run that was stopped or killed. Training a set again
    starts from its last weights; nothing is done if neither photos nor settings have changed.

    Args:
        data: Folder with one subfolder per class, with or without train, val and test folders,
            instead of a set.
        name: Name of the set to train. [default: the only set, unless `data` is given]
        out: Folder or URL for the model, its metrics and its report. [default: trained, or the
            set's own]
        overwrite: Start over instead of resuming; photos are kept.
        start_from: Folder or URL of an earlier model to start from. [default: the set's last
            model]
        log_to: Log settings and metrics to Weights & Biases or MLflow.
        library: Folder that contains your sets.
        split: Percentages for training, validation and test, if the photos are not already in
            train, val and test folders.
        image_size: Side length, in pixels, to resize photos to. [default: depends on the photos,
            128 to 224; from scratch 32 to 128]
        cache: Where to keep decoded photos.
        network: Network: lite0 (EfficientNet-Lite0, pretrained on ImageNet), tiny, small, standard,
            large, or timm:NAME for a timm network. [default: lite0; from scratch standard, or small
            without a GPU]
        pretrained: Start from timm's pretrained weights, for a timm network.
        from_scratch: Start from random weights instead of pretrained ones or a set's last model.
        epochs: Number of epochs. [default: 20 for a pretrained network, 30 from scratch, or more
            for few photos]
        minutes: Time for training and evaluation without a GPU. Only for the pretrained network,
            and if the number of epochs is not given. [default: 5]
        lr: Peak learning rate. [default: depends on the batch size]
        patience: Stop after this many epochs without a better validation accuracy; 0 disables early
            stopping. [default: a third of the epochs, at least 20]
        weight_decay: Weight decay of AdamW.
        warmup: Learning-rate warm-up, as a fraction of all steps.
        focal_loss: Use focal loss, which puts more weight on photos that are still misclassified.
        label_smoothing: Label smoothing: 0.1 lowers the target probability of the true class to
            about 0.9.
        class_weights: Weight the classes inversely to their frequency, so that all count equally.
        augment: Augment the training photos.
        rand_augment: RandAugment: number of operations per photo and their magnitude, 0 to 30.
            [default: 2,9]
        mixup: Mixup alpha; 0 disables Mixup. [default: 0.2]
        crop: Random resized crops: the smallest fraction of a photo's area that a crop keeps; 1
            disables them. [default: 0.35 for a pretrained network, otherwise 1]
        flip: Random horizontal flips. [default: if flipped photos look like the originals]
        seed: Seed for weights, photo order and augmentation.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        amp: Train in mixed precision: bf16, or fp16 on GPUs that do not support bf16. [default: if
            faster]
        compile: Use torch.compile. [default: if the run is long enough to benefit]
        cuda_graph: Capture the training step as a CUDA graph. [default: if faster]
        channels_last: Use the channels-last memory format. [default: if faster]
        num_workers: Number of threads that prefetch batches; 0 loads them on demand. [default: as
            many as needed]
        batch_size: Photos per batch, over all processes. [default: the fastest]
        grad_accum: Batches per optimizer step. [default: 1]
        gradient_checkpointing: Recompute activations instead of storing them: less memory, more
            time.
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        cache_dir: Folder for what is downloaded from a URL. [default: the user's cache folder]
        cache_size: The most that this folder may take, such as "50GB". [default: what was set last,
            or 64 GB, at most half of the free space]
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every step; when it returns True, the run saves a checkpoint and
            stops.

    Returns:
        The test accuracy with its confidence interval, a table with one row per class, and
        `load()`, which loads the classifier.

    Raises:
        InputError: The photos or a setting cannot be used.
        SettingsMismatchError: The folder contains a run with different settings.
        StoreLockedError: Another run is writing to the folder.
        TrainingError: Training cannot continue, for example because it diverged.
        TrainingStoppedError: `should_stop` returned True; everything so far is saved.
        DiskFullError: The disk is full.

    Examples:
        >>> result = train("photos", out="trained")
        >>> result.accuracy, result.interval
        >>> result.load().predict("new.jpg")[0].label
    """
    from clew.engine import PlanRequest
    from clew.loading.splits import parse_split
    from clew.patterns.training import LossSettings, PatternsConfig
    from clew.patterns.training.config import usual_train

    pattern_set = _open_set(data, name, Path(library), out=out, start_from=start_from)
    config = PatternsConfig(
        data=Path(data) if data is not None else pattern_set.photos,  # type: ignore[union-attr]
        out=as_path(out) or Path(_OUT),
        start_from=as_path(start_from),
        network=network,
        pretrained=pretrained,
        from_scratch=from_scratch,
        image_size=image_size,
        cache=cache,
        cache_dir=as_path(cache_dir),
        cache_size=None if cache_size is None else read_size("cache_size", cache_size),
        shares=parse_split(split),
        augment=_read_augment(augment, rand_augment, mixup=mixup, crop=crop, flip=flip),
        loss=LossSettings(
            focal=focal_loss, class_weights=class_weights, label_smoothing=label_smoothing
        ),
        epochs=epochs,
        minutes=minutes,
        patience=patience,
        train=replace(
            usual_train(), seed=seed, lr=lr, weight_decay=weight_decay, warmup_fraction=warmup
        ),
        request=PlanRequest(
            device=device,
            amp=amp,
            compile=compile,
            cuda_graph=cuda_graph,
            channels_last=channels_last,
            num_workers=num_workers,
            batch_size=batch_size,
            grad_accum=grad_accum,
            gradient_checkpointing=gradient_checkpointing,
            threads=threads,
        ),
        overwrite=overwrite,
    )
    return _train(config, pattern_set, log_to, reporter or log_event, should_stop)


def run_training(
    config: "PatternsConfig",
    reporter: Reporter,
    should_stop: Callable[[], bool],
    *,
    pattern_set: "PatternSet | None" = None,
) -> "ClassifierResult":
    """Train with a complete configuration, and write the report."""
    from clew.engine.processes import is_first_process
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.training import train_patterns

    results = train_patterns(config, reporter, should_stop)
    if is_first_process():
        write_page(config.out, reporter)
    return ClassifierResult(path=config.out, model=config.out, raw=results, pattern_set=pattern_set)


def _open_set(
    data: str | Path | None, name: str | None, library: Path, **of_folders: str | Path | None
) -> "PatternSet | None":
    """Open the set to train; None if `data` is given. Raises InputError for settings (`out`,
    `start_from`) that require `data`."""
    from clew.patterns.library.pattern_set import PatternSet

    if data is not None:
        if name is not None:
            raise InputError(
                f'the set "{name}" and `data` "{data}" cannot be combined: give only one of them.'
            )
        return None
    if name is not None and not (library / name / SET_FILE).is_file() and Path(name).is_dir():
        raise InputError(f'"{name}" is a folder: give it as `data="{name}"`.')
    for setting, value in of_folders.items():
        if value is not None:
            raise InputError(
                "it requires `data`. A set keeps its runs in its own folder, and each run starts "
                "from the previous one: omit it, or give `data`.",
                setting=setting,
                value=value,
            )
    return PatternSet.open(name, library, otherwise="a folder of photos with `data`")


def _train(
    config: "PatternsConfig",
    pattern_set: "PatternSet | None",
    log_to: Literal["wandb", "mlflow"] | None,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> "ClassifierResult":
    from clew.engine.tracking import tracked
    from clew.patterns.flow import plan_training
    from clew.patterns.training import PatternsConfig

    if pattern_set is not None:
        request = replace(config.request, threads=None)
        how = replace(config, cache_dir=None, cache_size=None, request=request)
        is_plain = how == PatternsConfig(data=config.data, out=config.out)
        planned = plan_training(pattern_set, config, only_if_changed=is_plain)
        if planned is None:
            return _newest(pattern_set)
        config = planned
    with tracked(reporter, log_to) as report_to:
        return run_training(config, report_to, should_stop, pattern_set=pattern_set)


def _newest(pattern_set: "PatternSet") -> "ClassifierResult":
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.trained.model import read_results

    model = pattern_set.latest_model()
    assert model is not None
    return ClassifierResult(
        path=model,
        model=model,
        raw=read_results(model, complete=True),
        pattern_set=pattern_set,
        is_new=False,
    )


def write_page(folder: Path, reporter: Reporter) -> None:
    """Write the report. If that fails, only report it: the training itself is complete."""
    from clew.patterns.report.page import write_report

    try:
        write_report(folder)
    except ClewError as error:
        reporter(Note(f"the report could not be written: {error}"))


def _read_augment(
    augment: bool, rand_augment: str | None, **settings: float | bool | None
) -> "AugmentConfig":
    from clew.patterns.augment import AugmentConfig

    if rand_augment is not None:
        settings["ops"], settings["magnitude"] = _read_pair(rand_augment)
    given: dict[str, Any] = {name: one for name, one in settings.items() if one is not None}
    return replace(AugmentConfig() if augment else AugmentConfig.nothing(), **given)


def _read_pair(text: str) -> tuple[int, float]:
    count, _, strength = text.partition(",")
    try:
        return int(count), float(strength)
    except ValueError:
        raise InputError(
            "use N,M: the number of operations and their magnitude, for example "
            '`rand_augment="2,9"`.',
            setting="rand_augment",
            value=text,
        ) from None


@repeatable("patterns evaluate", folder=lambda result: result.path)
def evaluate(
    data: str | Path,
    *,
    model: str | Path | None = None,
    name: str | None = None,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    device: str | None = None,
    num_workers: int | None = None,
    library: str | Path = LIBRARY,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "ClassifierResult":
    """Evaluate a trained classifier on photos that it has not seen.

    Photos from its training and validation splits are recognized by content, regardless of file
    name, and excluded.

    Args:
        data: Folder with one subfolder per class.
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        out: Folder or URL for the metrics and the report. [default: evaluated/DATA beside the
            model]
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        num_workers: Number of threads that prefetch photos. [default: one per core]
        library: Folder that contains your sets.
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every photo; when it returns True, the evaluation stops and
            nothing is written.

    Returns:
        The accuracy with its confidence interval, and a table with one row per class.

    Raises:
        InputError: The photos have classes that the classifier does not know, or there are none.
        TrainingStoppedError: `should_stop` returned True.

    Examples:
        >>> evaluate("other_photos", model="trained").accuracy
    """
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.library.choose import choose_model
    from clew.patterns.training.evaluate import evaluate_patterns, usual_evaluation_folder

    chosen = choose_model(name, model=as_path(model), library=Path(library))
    usual = usual_evaluation_folder(chosen.model, Path(data))
    folder = as_path(out) or usual
    reporter = reporter or log_event
    results = evaluate_patterns(
        chosen.model,
        Path(data),
        out=folder,
        device=device,
        workers=num_workers,
        reporter=reporter,
        should_stop=should_stop,
    )
    write_page(folder, reporter)
    return ClassifierResult(
        path=folder, model=chosen.model, raw=results, pattern_set=chosen.pattern_set
    )
