"""Serve a trained classifier: a page to try it on, and a JSON API."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path
from clew.base.texts import counted
from clew.patterns.library.folders import LIBRARY
from clew.storage.run_file import NeverFromFile

if TYPE_CHECKING:
    from clew.pages.api.running import Loaded


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
    from clew.pages.api.keys import read_keys
    from clew.pages.api.lifecycle import Lifecycle
    from clew.pages.api.running import Address, Loaded, connection_limits, run_service
    from clew.patterns.library.choose import choose_model
    from clew.patterns.serving.app import PAGE, PhotoService, build_app
    from clew.patterns.serving.corrections import Corrections
    from clew.patterns.serving.metrics import PhotoMetrics
    from clew.patterns.serving.settings import CONNECTIONS, PhotoServiceSettings
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
