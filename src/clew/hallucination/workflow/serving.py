"""Serve a model over OpenAI's API, with a risk in every answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path, check_exists
from clew.storage.run_file import NeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.pages.api import Lifecycle
    from clew.pages.service import Loaded


def serve(
    detector: str | Path | None = None,
    *,
    model: str | None = None,
    model_name: str | None = None,
    prompt: Literal["detector", "messages"] = "detector",
    host: Annotated[str, NeverFromFile] = "127.0.0.1",
    port: int = 8000,
    api_keys_file: Annotated[str | Path | None, NeverFromFile] = None,
    api_keys_env: Annotated[str | None, NeverFromFile] = None,
    allow_anonymous: Annotated[bool, NeverFromFile] = False,
    allowed_hosts: Annotated[Sequence[str], NeverFromFile] = (),
    max_rows: int = 64,
    max_waiting: int = 256,
    max_prompt_tokens: int | None = None,
    max_tokens: int = 1024,
    max_body_bytes: int = 1_000_000,
    request_seconds: float = 300.0,
    drain_seconds: float = 20.0,
    log_requests: Annotated[bool, NeverFromFile] = False,
    traces: str | Path | None = None,
    scores_file: str | Path | None = None,
    comparisons: Sequence[str | Path] = (),
    device: str = "auto",
    dtype: str = "auto",
    device_map: "str | Path | Mapping[str, int | str] | None" = None,
    offload_folder: str | Path | None = None,
    threads: int | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Serve a language model over OpenAI's API, with the risk of hallucination in every answer.

    POST /v1/chat/completions, /v1/completions and /score; GET /v1/models, /healthz, /readyz and
    /metrics; a page at /. Requests are answered together in one continuous batch. Ctrl-C and
    SIGTERM let running requests finish. Prompts and answers are not logged.

    Args:
        detector: Folder of a detector, such as the one that "clew compare" keeps. [default: the
            ready one for the built-in model, built on first use]
        model: The model that the detector was trained for, if it is now elsewhere: a Hugging Face
            model ID, a local folder or a .gguf file. [default: the one that the detector names]
        model_name: Name of the model in the API. [default: its own]
        prompt: detector: a conversation of one user message is put in the detector's prompt, and
            its answer is cut, as in training. messages: every conversation goes to the model as it
            is.
        host: Address to listen at. Any other than this machine's own (127.0.0.1, ::1, localhost)
            requires API keys.
        port: Port to listen at; 0 is any free one.
        api_keys_file: File with the API keys that clients may use, one per line.
        api_keys_env: Environment variable that contains API keys, separated by commas. [default:
            none]
        allow_anonymous: Accept requests without an API key at any address.
        allowed_hosts: Further names of this server that clients may use, such as a proxy's.
        max_rows: Number of answers to generate at once.
        max_waiting: Number of answers that may wait; more requests are refused with status 429.
        max_prompt_tokens: Maximum length of a prompt. [default: what the model takes]
        max_tokens: Maximum length of an answer, and its default in a chat.
        max_body_bytes: Maximum size of a request.
        request_seconds: Maximum time of a request.
        drain_seconds: Time for running requests to finish after Ctrl-C or SIGTERM.
        log_requests: Log prompts and answers.
        traces: Folder of a trace store to browse on the page.
        scores_file: Scores of its answers, as "clew label" writes them.
        comparisons: Folders of comparisons to show on the page.
        device: auto, cpu, cuda or cuda:1.
        dtype: auto, float32, float16 or bfloat16.
        device_map: Where the layers of a model go that is larger than one GPU: auto spreads them
            over GPUs, CPU memory and disk; or a JSON file that maps modules to devices.
            [default: all on `device`]
        offload_folder: Folder for weights on disk, where the model's own files cannot be read in
            place.
        threads: CPU threads to use. [default: all cores]
        reporter: Called with progress events. [default: the log]

    Returns:
        Nothing, once the server has ended.

    Raises:
        InputError: A setting, the model or the detector cannot be used, or the port is taken.
        StoreError: The detector is damaged.

    Examples:
        >>> clew.serve("comparison/detector", port=8000)
    """
    from clew.pages.server import require_web

    require_web()
    import torch

    from clew.base.cpu import Threads
    from clew.hallucination.live.page.files import open_page_files
    from clew.hallucination.live.page.routes import PAGE
    from clew.hallucination.live.service.app import build_app
    from clew.hallucination.live.service.metrics import Metrics
    from clew.hallucination.live.service.settings import ServiceSettings
    from clew.hallucination.live.session import Session
    from clew.pages.api import Lifecycle, read_keys
    from clew.pages.service import Address, Loaded, connection_limits, run_service

    report = reporter or log_event
    settings = ServiceSettings(
        model_name=model_name,
        prompt=prompt,
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        request_seconds=request_seconds,
        drain_seconds=drain_seconds,
        log_requests=log_requests,
    )
    address = Address(
        host=host,
        port=port,
        keys=read_keys(as_path(api_keys_file), api_keys_env),
        allow_anonymous=allow_anonymous,
        allowed_hosts=allowed_hosts,
    )
    limits = connection_limits(max_body_bytes)
    check_exists("detector", detector)
    files = open_page_files(as_path(traces), as_path(scores_file), tuple(map(Path, comparisons)))
    lifecycle, metrics = Lifecycle(drain_seconds), Metrics()
    placed: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "device_map": device_map,
        "offload_folder": offload_folder,
    }

    def load() -> "Loaded":
        # What is fastest now need not be for long: a server says that cores are scarce, no more.
        chosen = Threads(torch.get_num_threads() if threads is None else threads, report)
        found: str | Path | Detector | None = detector
        given: str | LoadedModel | None = model
        if found is None:
            found, given = _ready(model, placed, report, lifecycle)
        report(Note("loading the model"))
        session = Session.open(
            found,
            model=given,
            **placed,
            max_rows=max_rows,
            max_waiting=max_waiting,
            reporter=report,
            threads=chosen,
        )
        session.start()
        kept = session.detector
        return Loaded(
            app=build_app(session, settings, lifecycle, metrics, files),
            served=f"{settings.name_of(kept.model)} with the detector {kept.name}",
            path="v1",
            close=session.close,
        )

    run_service(address, limits, lifecycle, metrics, PAGE, load, report)


def _ready(
    model: str | None, placed: Mapping[str, Any], reporter: Reporter, lifecycle: "Lifecycle"
) -> "tuple[Detector, LoadedModel]":
    """The ready detector and the built-in model, which it is built with if there is none yet."""
    from clew.hallucination.capture import load_model
    from clew.hallucination.live.ready import ready_detector
    from clew.hallucination.llm.embedded import EMBEDDED_NAME

    loaded = load_model(model or EMBEDDED_NAME, **placed)
    found = ready_detector(loaded, reporter, lambda: lifecycle.phase == "draining")
    return found, loaded
