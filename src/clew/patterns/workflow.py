"""The steps with photos, one function each: `clew.patterns.train`, `identify`, ... The commands
take their options from these functions, and heavy libraries are imported when one is called."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.base.commands import select, takes
from clew.base.errors import ClewError, InputError
from clew.base.progress import Note, Reporter, load_modules, log_event
from clew.base.settings import (
    as_path,
    check_exists,
    check_folders,
    check_writable,
    read_size,
)
from clew.base.texts import counted
from clew.base.urls import is_url, local_path
from clew.patterns.presets import AugmentConfig
from clew.patterns.settings import (
    LIBRARY,
    CleanSettings,
    EvaluateSettings,
    ExportSettings,
    FlowSettings,
    IdentifySettings,
    OfModel,
    RecognizeSettings,
    ReviewSettings,
    ServeSettings,
    SimilarSettings,
    TrainSettings,
)
from clew.storage.run_file import has_same_settings, repeatable

if TYPE_CHECKING:
    from clew.pages.service import Loaded
    from clew.patterns.cleaning.findings import CleanResult
    from clew.patterns.cleaning.search import SimilarPhoto
    from clew.patterns.flow import ClassifierResult, FlowResult
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.identification.recognize import Recognition
    from clew.patterns.library.importing import ImportResult
    from clew.patterns.library.pattern_set import PatternSet, SetSummary
    from clew.patterns.review.review import ReviewResult
    from clew.patterns.trained.export import ExportedModel
    from clew.patterns.trained.model import PatternModel


logger = logging.getLogger(__name__)


def create_set(name: str, *, library: str | Path = LIBRARY) -> "PatternSet":
    """Create an empty set: a named folder for photos, sorted by class, and the models trained on
    them.

    Args:
        name: Name of the set, which is also the name of its folder.
        library: Folder that contains your sets.

    Returns:
        The set, with the paths of its photos and runs.

    Raises:
        InputError: The name is taken, or cannot be the name of a folder.

    Examples:
        >>> create_set("animals").photos
    """
    from clew.patterns.library.pattern_set import PatternSet

    return PatternSet.create(name, Path(library))


def import_photos(
    name: "str | PatternSet",
    sources: str | Path | Sequence[str | Path],
    *,
    label: str | None = None,
    move: bool = False,
    library: str | Path = LIBRARY,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "ImportResult":
    """Add photos to a set, all classes at once.

    Damaged, empty, tiny and duplicate files are excluded, with the reason in import.csv. Nothing
    is overwritten. Run the same command again to resume an import that was stopped.

    Args:
        name: Name of the set.
        sources: Folders with one subfolder per class, with or without train, val and test folders.
        label: Assign all photos to this class, regardless of their folders.
        move: Move the photos instead of copying them.
        library: Folder that contains your sets.
        reporter: Called with progress events. [default: the log]
        should_stop: Called after every photo; when it returns True, the import stops and can be
            resumed.

    Returns:
        The result for every file, and the path of import.csv (`listing`); `is_finished` is False if
        it was stopped.

    Raises:
        InputError: There is no such set, or a folder contains no photos.
        StoreLockedError: Another process is adding photos to the set.

    Examples:
        >>> result = import_photos("animals", "my_photos")
        >>> [(source.source, source.reason) for source in result.excluded]
    """
    from clew.patterns.library.importing import import_photos as import_into

    folders = [sources] if isinstance(sources, str | Path) else sources
    return import_into(
        _open(name, library),
        [Path(folder) for folder in folders],
        label=label,
        move=move,
        reporter=reporter,
        should_stop=should_stop,
    )


def list_sets(*, library: str | Path = LIBRARY) -> "list[SetSummary]":
    """List the sets in a library: classes, photos, and the test accuracy of their models.

    Args:
        library: Folder that contains your sets.

    Returns:
        One summary per set, by name. Damaged sets are logged and skipped.

    Raises:
        OSError: The library cannot be read.

    Examples:
        >>> {one.name: one.photos for one in list_sets()}
    """
    from clew.patterns.library.pattern_set import summarize_library

    summaries, damaged = summarize_library(Path(library))
    for error in damaged:
        logger.warning("%s", error)
    return summaries


def describe_set(name: str | None = None, *, library: str | Path = LIBRARY) -> "SetSummary":
    """Show a set: classes, training runs with their accuracy, folders, and the next step.

    Args:
        name: Name of the set. [default: the only one]
        library: Folder that contains your sets.

    Returns:
        Classes with their counts, training runs, and what has changed since the last one.

    Raises:
        InputError: There is no such set.
        StoreError: The set is damaged.

    Examples:
        >>> describe_set("animals").classes
    """
    from clew.patterns.library.pattern_set import summarize_set

    return summarize_set(_open(name, library))


def _open(name: "str | PatternSet | None", library: str | Path) -> "PatternSet":
    from clew.patterns.library.pattern_set import PatternSet

    return name if isinstance(name, PatternSet) else PatternSet.open(name, Path(library))


_OUT = "trained"
# Settings that say where a set is and who watches its training, not how it is trained.
_NOT_OF_TRAINING = ("name", "library", "log_to", "cache_dir", "cache_size")


def _find_unchanged(
    settings: Mapping[str, Any], recorded: Mapping[str, Any]
) -> "ClassifierResult | None":
    """The set's newest model if neither its photos nor the settings have changed since, or no
    settings are given; a run with `data` is resumed by its own folder."""
    from clew.patterns.library.pattern_set import PatternSet

    given = [settings[name] for name in ("data", "out", "start_from")]
    if settings["overwrite"] or any(value is not None for value in given):
        return None
    try:
        pattern_set = PatternSet.open(settings["name"], Path(settings["library"]))
    except ClewError:
        return None  # the run itself says what is wrong
    model = pattern_set.unchanged_model()
    if model is None:
        return None
    is_plain = {*recorded} <= {*_NOT_OF_TRAINING}
    if not is_plain and not has_same_settings(model, recorded, besides=_NOT_OF_TRAINING):
        return None
    from clew.patterns.flow import ClassifierResult
    from clew.patterns.trained.model import read_results

    results = read_results(model, complete=True)
    return ClassifierResult(
        path=model, model=model, raw=results, pattern_set=pattern_set, is_new=False
    )


@repeatable(
    "patterns train",
    folder=lambda result: result.path if result.is_new else None,
    unrecorded=("overwrite", "threads"),
    find_done=_find_unchanged,
)
@takes(TrainSettings)
def train(given: TrainSettings) -> "ClassifierResult":
    """Train a photo classifier and evaluate it on photos that it has not seen.

    Photos are decoded once; files that cannot be used are listed in excluded.csv. Run the same
    command again to resume a run that was stopped or killed. Training a set again
    starts from its last weights; nothing is done if neither photos nor settings have changed.

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

    request, pattern_set = select(PlanRequest, given), _open_set_to_train(given)
    _check_photos(given.data)
    check_writable("out", given.out)

    size = given.cache_size
    config = select(
        PatternsConfig,
        given,
        data=Path(given.data or "") if pattern_set is None else pattern_set.photos,
        out=as_path(given.out) or Path(_OUT),
        start_from=as_path(given.start_from),
        cache_dir=as_path(given.cache_dir),
        cache_size=None if size is None else read_size("cache_size", size),
        shares=parse_split(given.split),
        augment=_read_augment(given),
        tries_augmentations=given.augment and given.rand_augment is None and given.mixup is None,
        loss=select(LossSettings, given, focal=given.focal_loss),
        train=replace(
            usual_train(),
            seed=given.seed,
            lr=given.lr,
            weight_decay=given.weight_decay,
            warmup_fraction=given.warmup,
        ),
        request=request,
    )
    load_modules(given.reporter or log_event, "clew.patterns.flow")
    from clew.engine.tracking import tracked
    from clew.patterns.flow import plan_training, run_training

    if pattern_set is not None:
        config = plan_training(pattern_set, config)
    with tracked(given.reporter or log_event, given.log_to) as report:
        return run_training(config, report, given.should_stop, pattern_set=pattern_set)


def _open_set_to_train(given: TrainSettings) -> "PatternSet | None":
    """None if `data` is given. Raises InputError for settings that require `data`."""
    from clew.patterns.library.pattern_set import SET_FILE, PatternSet

    library, name = Path(given.library), given.name
    if given.data is not None:
        if name is not None:
            raise InputError(
                f'the set "{name}" and `data` "{given.data}" cannot be combined: give only one of '
                "them."
            )
        return None
    if name is not None and not (library / name / SET_FILE).is_file() and Path(name).is_dir():
        raise InputError(f'"{name}" is a folder: give it as `data="{name}"`.')
    for setting, value in {"out": given.out, "start_from": given.start_from}.items():
        if value is not None:
            raise InputError(
                "it requires `data`. A set keeps its runs in its own folder, and each run starts "
                "from the previous one: omit it, or give `data`.",
                setting=setting,
                value=value,
            )
    return PatternSet.open(name, library, otherwise="a folder of photos with `data`")


def _read_augment(given: TrainSettings) -> AugmentConfig:
    settings: dict[str, Any] = {"mixup": given.mixup, "crop": given.crop, "flip": given.flip}
    if given.rand_augment is not None:
        count, _, strength = given.rand_augment.partition(",")
        try:
            settings |= {"ops": int(count), "magnitude": float(strength)}
        except ValueError:
            raise InputError(
                "use N,M: the number of operations and their magnitude, for example "
                '`rand_augment="2,9"`.',
                setting="rand_augment",
                value=given.rand_augment,
            ) from None
    chosen = {name: one for name, one in settings.items() if one is not None}
    return replace(AugmentConfig() if given.augment else AugmentConfig.nothing(), **chosen)


@repeatable("patterns evaluate", folder=lambda result: result.path)
@takes(EvaluateSettings)
def evaluate(given: EvaluateSettings) -> "ClassifierResult":
    """Evaluate a trained classifier on photos that it has not seen.

    Photos from its training and validation splits are recognized by content, regardless of file
    name, and excluded.

    Returns:
        The accuracy with its confidence interval, and a table with one row per class.

    Raises:
        InputError: The photos have classes that the classifier does not know, or there are none.
        TrainingStoppedError: `should_stop` returned True.

    Examples:
        >>> evaluate("other_photos", model="trained").accuracy
    """
    _check_model(given)
    _check_photos(given.data)
    reporter = given.reporter or log_event
    load_modules(reporter, "clew.patterns.flow")
    from clew.patterns.flow import ClassifierResult, write_page
    from clew.patterns.library.choose import choose_model
    from clew.patterns.training.evaluate import evaluate_patterns, usual_evaluation_folder

    chosen = choose_model(given.name, model=given.model, library=given.library)
    data = Path(given.data)
    folder = as_path(given.out) or usual_evaluation_folder(chosen.model, data)
    results = evaluate_patterns(
        chosen.model,
        data,
        out=folder,
        device=given.device,
        workers=given.num_workers,
        reporter=reporter,
        should_stop=given.should_stop,
    )
    write_page(folder, reporter)
    return ClassifierResult(
        path=folder, model=chosen.model, raw=results, pattern_set=chosen.pattern_set
    )


@repeatable(
    "patterns clean",
    folder=lambda result: result.folder,
    unrecorded=("web", "port", "browser"),
    unless="undo",
)
@takes(CleanSettings)
def clean_photos(given: CleanSettings) -> "CleanResult":
    """Find wrong labels, near duplicates, leaks between splits, overlapping classes, outliers, and
    photos of poor quality.

    Works before any training, with features of a pretrained network. Writes CSV, JSON and an HTML
    report. Nothing is changed, except by your decisions on the page (`web=True`): relabel, move,
    remove or keep each photo. Removed photos are moved beside the data, and every change can be
    undone.

    Returns:
        The findings (iterate over it), their counts, and the paths of the lists and the report.

    Raises:
        InputError: There are no photos in class folders, or the weights of the network cannot be
            downloaded.
        StoreLockedError: Another session is changing the same photos.
        TrainingStoppedError: `should_stop` returned True; run the same command again to resume.
        DiskFullError: The disk is full.

    Examples:
        >>> for finding in clean_photos("photos"):
        ...     print(finding.kind, finding.name, finding.reason)
    """
    from clew.pages.server import require_web
    from clew.patterns.cleaning.findings import CleanPlace

    _check_photos(given.data)
    place = CleanPlace.choose(given)
    if given.web:
        require_web()
    load_modules(given.reporter or log_event, "clew.patterns.cleaning.session")
    from clew.patterns.cleaning.session import decide_on_page, search_problems, undo_changes

    if given.undo:
        return undo_changes(place, given.undo)
    result = search_problems(place, given)
    if given.web and len(result):
        decide_on_page(place, result.findings, given)
    return result


@takes(SimilarSettings)
def find_similar(given: SimilarSettings) -> "tuple[SimilarPhoto, ...]":
    """Find the photos that are most like a given one.

    The features of the photos are computed once and kept.

    Returns:
        The photos with their classes and similarity (1 for the same image, about 0 for any other
        photo), the most similar first.

    Raises:
        InputError: The photo cannot be read, there are no photos in class folders, or the weights
            of the network cannot be downloaded.
        TrainingStoppedError: `should_stop` returned True.

    Examples:
        >>> [(photo.name, photo.similarity) for photo in find_similar("cat.jpg", data="photos")]
    """
    if not Path(given.image).expanduser().is_file():
        raise InputError(f'there is no photo "{given.image}": check the path.')
    from clew.patterns.cleaning.findings import CleanPlace

    _check_photos(given.data)
    place = CleanPlace.choose(given)
    load_modules(given.reporter or log_event, "clew.patterns.cleaning.search")
    from clew.patterns.cleaning.search import find_similar_photos

    return find_similar_photos(place.data, place.cache, given)


@takes(ReviewSettings)
def review_photos(given: ReviewSettings) -> "ReviewResult":
    """Review doubtful photos, with one key press per photo.

    Approve, correct or skip each photo. Approved and corrected photos are added to their class
    immediately; skipped ones stay where they are and are shown again only with `every=True`.
    Stop at any time; your decisions are saved. Then train again, starting from the last weights.

    Returns:
        How many photos were approved, corrected and skipped.

    Raises:
        InputError: Nothing was identified yet, or there is no such model.
        StoreLockedError: Another review of the same photos is running.

    Examples:
        >>> review_photos("animals", web=True).counts
    """
    from clew.patterns.review import run_review

    return run_review(given)


@takes(FlowSettings)
def run_flow(given: FlowSettings) -> "FlowResult":
    """Run all steps at once: create a set, import photos, train, identify, review.

    Run the same command again to resume: photos are imported once, and the set is trained again
    only if its photos have changed.

    Returns:
        The set, the metrics of its newest model, and what was identified.

    Raises:
        InputError: A folder is missing or a setting cannot be used; raised before anything is
            done.
        SettingsMismatchError: An unfinished training run of the set used different settings.
        StoreLockedError: Another process is working on the set.
        TrainingStoppedError: The training was stopped; everything so far is saved.
        DiskFullError: The disk is full.

    Examples:
        >>> run_flow("animals", sources=["my_photos"], identify="holiday_photos").results
    """
    from clew.patterns import flow

    return flow.run_flow(given)


def _check_photos(data: str | Path | None) -> None:
    """Raises InputError unless there is such a folder, before PyTorch is imported."""
    from clew.patterns.photos.find import check_folder

    check_folders(data)
    if data is not None and not is_url(data):
        check_folder(Path(data))


def _check_model(given: OfModel) -> None:
    """Raises InputError if there is no such set or model, before PyTorch is imported."""
    from clew.patterns.library.choose import choose_model

    choose_model(given.name, model=given.model, library=given.library)


def load_classifier(path: str | Path, *, device: str | None = None) -> "PatternModel":
    """Load a trained photo classifier.

    Args:
        path: Folder or URL that `train` wrote, or the folder of a set.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]

    Returns:
        The classifier: `classes` are its classes, `predict(photos)` returns a label and a
        confidence per photo.

    Raises:
        InputError: The folder contains no trained classifier, or there is no such device.
        StoreError: A file is damaged.

    Examples:
        >>> classifier = load_classifier("trained")
        >>> [prediction] = classifier.predict("bird.jpg")
        >>> prediction.label, prediction.confidence, prediction.top_k(3)
    """
    from clew.patterns.library.choose import choose_model

    return choose_model(model=path).load(device)


@repeatable("patterns identify", folder=lambda result: result.folder)
@takes(IdentifySettings)
def identify(given: IdentifySettings) -> "IdentifyResult":
    """Classify a folder of photos. Writes CSV and JSON lists, an HTML page and contact sheets,
    doubtful photos first.

    Returns:
        The photos with their classes (iterate over it), counts, and the paths of the lists and
        pages.

    Raises:
        InputError: There are no photos, there is no such model, or the output folder contains other
            files.

    Examples:
        >>> for photo in identify("holiday_photos", model="trained"):
        ...     print(photo.name, photo.label, photo.confidence)
    """
    from clew.pages.server import require_web

    if given.web:
        require_web()
    _check_model(given)
    check_exists("photos", given.photos)
    check_writable("out", given.out)
    load_modules(given.reporter or log_event, "clew.patterns.identification.identify")
    from clew.patterns.identification.identify import identify_photos

    result = identify_photos(given)
    if (given.review or given.web) and result.counts["doubtful"]:
        from clew.patterns.review import run_review

        run_review(select(ReviewSettings, given, identified=result.folder))
    return result


@takes(RecognizeSettings)
def recognize(given: RecognizeSettings) -> "Recognition":
    """Classify one photo; with `multiscale`, also locate the object in it.

    Returns:
        The most likely classes with their probabilities, where the photo shows them,
        `is_doubtful` and `is_unknown`.

    Raises:
        InputError: The photo cannot be read, or there is no such model.

    Examples:
        >>> recognize("bird.jpg", model="trained", multiscale=True).best
    """
    from clew.patterns.library.choose import choose_model

    _check_model(given)
    check_exists("image", given.image)
    from clew.patterns.identification.recognize import recognize_photo

    loaded = choose_model(given.name, model=given.model, library=given.library).load(given.device)
    found = recognize_photo(
        loaded, Path(given.image), top_k=given.top_k, multiscale=given.multiscale
    )
    return replace(found, threshold=given.threshold, unknown=given.unknown)


@takes(ExportSettings)
def export(given: ExportSettings) -> "ExportedModel":
    """Export a trained classifier to a single ONNX file, for use without clew.

    The exported model takes pixels and returns calibrated probabilities. It is written only if
    onnxruntime returns the same predictions. Requires "clew[onnx]". With `web`, also a page that
    classifies photos in the browser, for any web server.

    Returns:
        The path and size of the file, and the largest difference between its probabilities and the
        classifier's.

    Raises:
        InputError: The file exists, the packages of the extra are missing, or npm cannot fetch
            onnxruntime-web.
        ClewError: onnxruntime predicts something else, or the network cannot be exported.

    Examples:
        >>> export(model="trained", out="animals.onnx").path
    """
    from clew.patterns.library.choose import choose_model

    _check_model(given)
    check_writable("out", given.out, is_file=True)
    from clew.patterns.trained.export import PROGRAM_SUFFIX, export_onnx, export_program
    from clew.storage.places import open_place
    from clew.storage.working_copy import placing

    chosen = choose_model(given.name, model=given.model, library=given.library)
    if given.web is not None and given.out is not None:
        raise InputError(
            "`out` and `web` are different exports: give only one of them. The folder of the page "
            "contains the model too.",
            setting="web",
            value=given.web,
        )
    if given.web is not None:
        from clew.patterns.serving.demo import export_demo

        folder, title = local_path(given.web), chosen.title
        return export_demo(chosen.load("cpu"), folder, name=title, overwrite=given.overwrite)
    path = as_path(given.out) or chosen.model / "model.onnx"
    if open_place(path.parent).stat(path.name) is not None and not given.overwrite:
        raise InputError(
            f'"{path}" already exists: give another `out`, or `overwrite=True` to replace it.'
        )
    write = export_program if path.suffix == PROGRAM_SUFFIX else export_onnx
    with placing(path.parent, path.name) as here:
        exported = write(chosen.load("cpu"), here)
    return replace(exported, path=path)


@takes(ServeSettings)
def serve(given: ServeSettings) -> None:
    """Serve a trained classifier: a page for photos and the camera, and a JSON API.

    POST /identify classifies the photo in the request; GET /model lists the classes; also
    /healthz, /readyz and /metrics. On the page, a click corrects a prediction: the photo is then
    kept for "clew patterns review". No other photo is kept. Ctrl-C and SIGTERM let running requests
    finish.

    Returns:
        Nothing, once the server has ended.

    Raises:
        InputError: A setting or the model cannot be used, or the port is taken.
        StoreError: The model is damaged.

    Examples:
        >>> clew.patterns.serve(model="trained", port=8000)
    """
    from clew.pages.server import require_web

    require_web()
    from clew.pages.api import Lifecycle, read_keys
    from clew.pages.service import Address, Loaded, connection_limits, run_service
    from clew.patterns.library.choose import choose_model

    keys = read_keys(as_path(given.api_keys_file), given.api_keys_env)
    address = select(Address, given, keys=keys)
    address.check_free()
    chosen = choose_model(given.name, model=given.model, library=given.library)
    from clew.patterns.serving.app import CONNECTIONS, PAGE, PhotoMetrics, PhotoService, build_app
    from clew.patterns.serving.corrections import Corrections
    from clew.patterns.trained.model import usual_device

    report = given.reporter or log_event
    device = usual_device(given.device)
    lifecycle, metrics = Lifecycle(given.drain_seconds), PhotoMetrics()

    def load() -> "Loaded":
        report(Note("loading the model"))
        loaded = chosen.load(device)
        kept = Corrections(chosen.home, chosen.model, loaded.classes, most=given.max_corrections)
        service = PhotoService(
            loaded, kept, given, name=chosen.title, lifecycle=lifecycle, metrics=metrics
        )
        served = f"{service.name} ({len(loaded.classes):,} classes)"
        return Loaded(app=build_app(service), served=served, path="identify", close=service.close)

    limits = connection_limits(given.max_body_bytes, CONNECTIONS)
    run_service(address, limits, lifecycle, metrics, PAGE, load, report)
    if kept := Corrections(chosen.home, chosen.model, (), most=given.max_corrections).count():
        report(Note(f'{counted(kept, "corrected photo")} kept for "clew patterns review"'))
