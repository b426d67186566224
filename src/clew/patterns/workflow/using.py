"""Use a trained classifier: load, identify, recognize, export."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.errors import InputError
from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path
from clew.base.texts import counted
from clew.base.urls import local_path
from clew.patterns.library.folders import LIBRARY
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile, repeatable

if TYPE_CHECKING:
    from clew.pages.service import Loaded
    from clew.patterns.identification.identify import IdentifyResult
    from clew.patterns.identification.recognize import Recognition
    from clew.patterns.trained.export import ExportedModel
    from clew.patterns.trained.model import PatternModel


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
    from clew.patterns.trained import model

    return model.load_classifier(choose_model(model=as_path(path)).model, device)


@repeatable("patterns identify", folder=lambda result: result.folder)
def identify(
    photos: str | Path,
    *,
    model: "str | Path | PatternModel | None" = None,
    name: str | None = None,
    top_k: int = 3,
    threshold: float = 0.6,
    unknown: float = 0.05,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    copy_to: Annotated[str | Path | None, UrlNeverFromFile] = None,
    thumbnails: int = 500,
    review: bool = False,
    web: bool = False,
    library: str | Path = LIBRARY,
    device: str | None = None,
    reporter: Reporter | None = None,
) -> "IdentifyResult":
    """Classify a folder of photos. Writes CSV and JSON lists, an HTML page and contact sheets,
    doubtful photos first.

    Args:
        photos: A folder of photos, or one photo.
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        top_k: Number of classes to list per photo.
        threshold: Mark photos below this confidence as doubtful.
        unknown: Mark photos as unknown that are unlike every class: less typical than this share of
            the validation photos. 0 marks none.
        out: Folder for the results. [default: identified/FOLDER beside the model, or here if that
            is at a URL]
        copy_to: Copy the photos to this folder, with one subfolder per class; nothing is
            overwritten.
        thumbnails: Number of photos to show on the page and the contact sheets.
        review: Afterwards, review each doubtful photo.
        web: Review on a page in the browser instead of the terminal.
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        reporter: Called with progress events. [default: the log]

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
    from clew.patterns.identification.identify import configure_identification, identify_photos
    from clew.patterns.library.choose import choose_model
    from clew.patterns.trained.model import PatternModel

    if web:
        require_web()
    loaded = model if isinstance(model, PatternModel) else None
    folder = loaded.folder if loaded is not None else as_path(model)  # type: ignore[arg-type]
    chosen = choose_model(name, model=folder, library=Path(library))
    usual = configure_identification(chosen, Path(photos), device=device)
    config = replace(
        usual,
        out=usual.out if out is None else local_path(out),
        top_k=top_k,
        threshold=threshold,
        unknown=unknown,
        copy_to=as_path(copy_to),
        thumbnails=thumbnails,
    )
    result = identify_photos(config, reporter, loaded)
    if (review or web) and result.counts["doubtful"]:
        from clew.patterns.review import ReviewConfig
        from clew.patterns.review.app import run_review

        run_review(chosen, ReviewConfig(identified=result.folder), web=web)
    return result


def recognize(
    image: str | Path,
    *,
    model: str | Path | None = None,
    name: str | None = None,
    multiscale: bool = False,
    top_k: int = 3,
    threshold: float = 0.6,
    unknown: float = 0.05,
    library: str | Path = LIBRARY,
    device: str | None = None,
) -> "Recognition":
    """Classify one photo; with `multiscale`, also locate the object in it.

    Args:
        image: The photo.
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        multiscale: Scan windows of several sizes to find and locate small objects in the photo.
        top_k: Number of classes to list.
        threshold: Mark the photo as doubtful below this confidence.
        unknown: Mark the photo as unknown if it is unlike every class: less typical than this share
            of the validation photos. 0 never does.
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]

    Returns:
        The most likely classes with their probabilities, where the photo shows them,
        `is_doubtful` and `is_unknown`.

    Raises:
        InputError: The photo cannot be read, or there is no such model.

    Examples:
        >>> recognize("bird.jpg", model="trained", multiscale=True).best
    """
    from clew.patterns.identification.recognize import recognize_photo
    from clew.patterns.identification.results import check_options
    from clew.patterns.library.choose import choose_model
    from clew.patterns.trained import model as trained

    check_options(threshold=threshold, unknown=unknown)
    chosen = choose_model(name, model=as_path(model), library=Path(library))
    loaded = trained.load_classifier(chosen.model, trained.usual_device(device))
    found = recognize_photo(loaded, Path(image), top_k=top_k, multiscale=multiscale)
    return replace(found, threshold=threshold, unknown=unknown)


def export(
    *,
    model: str | Path | None = None,
    name: str | None = None,
    out: Annotated[str | Path | None, UrlNeverFromFile] = None,
    web: Annotated[str | Path | None, UrlNeverFromFile] = None,
    overwrite: bool = False,
    library: str | Path = LIBRARY,
) -> "ExportedModel":
    """Export a trained classifier to a single ONNX file, for use without clew.

    The exported model takes pixels and returns calibrated probabilities. It is written only if
    onnxruntime returns the same predictions. Requires "clew[onnx]". With `web`, also a page that
    classifies photos in the browser, for any web server.

    Args:
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        out: The file to write; with the extension .pt2 it is a torch.export program instead of
            ONNX. [default: model.onnx beside the model]
        web: Folder for a page that classifies photos in the browser, with the model and
            onnxruntime-web, which is fetched with npm. [default: no page]
        overwrite: Overwrite an existing file.
        library: Folder that contains your sets.

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
    from clew.patterns.trained import model as trained
    from clew.patterns.trained.export import PROGRAM_SUFFIX, export_onnx, export_program
    from clew.storage.places import open_place
    from clew.storage.working_copy import placing

    chosen = choose_model(name, model=as_path(model), library=Path(library))
    if web is not None and out is not None:
        raise InputError(
            "`out` and `web` are different exports: give only one of them. The folder of the page "
            "contains the model too.",
            setting="web",
            value=web,
        )
    if web is not None:
        from clew.patterns.serving.demo import export_demo

        loaded = trained.load_classifier(chosen.model, device="cpu")
        return export_demo(loaded, local_path(web), name=chosen.title, overwrite=overwrite)
    path = as_path(out) or chosen.model / "model.onnx"
    if open_place(path.parent).stat(path.name) is not None and not overwrite:
        raise InputError(
            f'"{path}" already exists: give another `out`, or `overwrite=True` to replace it.'
        )
    write = export_program if path.suffix == PROGRAM_SUFFIX else export_onnx
    with placing(path.parent, path.name) as here:
        exported = write(trained.load_classifier(chosen.model, device="cpu"), here)
    return replace(exported, path=path)


def serve(
    *,
    model: str | Path | None = None,
    name: str | None = None,
    top_k: int = 3,
    threshold: float = 0.6,
    unknown: float = 0.05,
    host: Annotated[str, NeverFromFile] = "127.0.0.1",
    port: int = 8000,
    api_keys_file: Annotated[str | Path | None, NeverFromFile] = None,
    api_keys_env: Annotated[str | None, NeverFromFile] = None,
    allow_anonymous: Annotated[bool, NeverFromFile] = False,
    allowed_hosts: Annotated[Sequence[str], NeverFromFile] = (),
    max_waiting: int = 32,
    max_body_bytes: int = 20_000_000,
    max_corrections: int = 10_000,
    drain_seconds: float = 20.0,
    library: str | Path = LIBRARY,
    device: str | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Serve a trained classifier: a page for photos and the camera, and a JSON API.

    POST /identify classifies the photo in the request; GET /model lists the classes; also
    /healthz, /readyz and /metrics. On the page, a click corrects a prediction: the photo is then
    kept for "clew patterns review". No other photo is kept. Ctrl-C and SIGTERM let running requests
    finish.

    Args:
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
        top_k: Number of classes to list per photo.
        threshold: Mark photos below this confidence as doubtful.
        unknown: Mark photos as unknown that are unlike every class: less typical than this share of
            the validation photos. 0 marks none.
        host: Address to listen at. Any other than this machine's own (127.0.0.1, ::1, localhost)
            requires API keys.
        port: Port to listen at; 0 is any free one.
        api_keys_file: File with the API keys that clients may use, one per line.
        api_keys_env: Environment variable that contains API keys, separated by commas. [default:
            none]
        allow_anonymous: Accept requests without an API key at any address.
        allowed_hosts: Further names of this server that clients may use, such as a proxy's.
        max_waiting: Number of photos that may wait; more are refused with status 429.
        max_body_bytes: Maximum size of a photo.
        max_corrections: Number of corrected photos to keep until they are reviewed.
        drain_seconds: Time for running requests to finish after Ctrl-C or SIGTERM.
        library: Folder that contains your sets.
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
        reporter: Called with progress events. [default: the log]

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
    from clew.patterns.serving.app import (
        CONNECTIONS,
        PAGE,
        PhotoMetrics,
        PhotoService,
        PhotoServiceSettings,
        build_app,
    )
    from clew.patterns.serving.corrections import Corrections
    from clew.patterns.trained.model import load_classifier, usual_device

    report = reporter or log_event
    settings = PhotoServiceSettings(
        top_k=top_k,
        threshold=threshold,
        unknown=unknown,
        max_waiting=max_waiting,
        max_body_bytes=max_body_bytes,
        max_corrections=max_corrections,
        drain_seconds=drain_seconds,
    )
    address = Address(
        host=host,
        port=port,
        keys=read_keys(as_path(api_keys_file), api_keys_env),
        allow_anonymous=allow_anonymous,
        allowed_hosts=allowed_hosts,
    )
    chosen = choose_model(name, model=as_path(model), library=Path(library))
    place = usual_device(device)
    lifecycle, metrics = Lifecycle(drain_seconds), PhotoMetrics()

    def load() -> "Loaded":
        report(Note("loading the model"))
        loaded = load_classifier(chosen.model, place)
        service = PhotoService(
            loaded,
            Corrections(chosen.home, chosen.model, loaded.classes, most=max_corrections),
            settings,
            name=chosen.title,
            lifecycle=lifecycle,
            metrics=metrics,
        )
        served = f"{service.name} ({len(loaded.classes):,} classes)"
        return Loaded(app=build_app(service), served=served, path="identify", close=service.close)

    limits = connection_limits(max_body_bytes, CONNECTIONS)
    run_service(address, limits, lifecycle, metrics, PAGE, load, report)
    if kept := Corrections(chosen.home, chosen.model, (), most=max_corrections).count():
        report(Note(f'{counted(kept, "corrected photo")} kept for "clew patterns review"'))
