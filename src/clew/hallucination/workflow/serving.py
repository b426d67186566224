"""Serve a model over OpenAI's API, with a risk in every answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base.commands import select, takes
from clew.base.progress import Note, Reporter, log_event
from clew.base.settings import as_path, check_exists
from clew.hallucination.workflow.extracting import ModelPlacement
from clew.storage.run_file import NeverFromFile

if TYPE_CHECKING:
    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.pages.api import Lifecycle
    from clew.pages.service import Loaded


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ModelPlacement):
    """What `serve` takes.

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
        threads: CPU threads to use. [default: all cores]
        reporter: Called with progress events. [default: the log]
    """

    detector: str | Path | None = field(default=None, kw_only=False)
    model: str | None = None
    model_name: str | None = None
    prompt: Literal["detector", "messages"] = "detector"
    host: Annotated[str, NeverFromFile] = "127.0.0.1"
    port: int = 8000
    api_keys_file: Annotated[str | Path | None, NeverFromFile] = None
    api_keys_env: Annotated[str | None, NeverFromFile] = None
    allow_anonymous: Annotated[bool, NeverFromFile] = False
    allowed_hosts: Annotated[Sequence[str], NeverFromFile] = ()
    max_rows: int = 64
    max_waiting: int = 256
    max_prompt_tokens: int | None = None
    max_tokens: int = 1024
    max_body_bytes: int = 1_000_000
    request_seconds: float = 300.0
    drain_seconds: float = 20.0
    log_requests: Annotated[bool, NeverFromFile] = False
    traces: str | Path | None = None
    scores_file: str | Path | None = None
    comparisons: Sequence[str | Path] = ()
    threads: int | None = None
    reporter: Reporter | None = None


@takes(ServeSettings)
def serve(given: ServeSettings) -> None:
    """Serve a language model over OpenAI's API, with the risk of hallucination in every answer.

    POST /v1/chat/completions, /v1/completions and /score; GET /v1/models, /healthz, /readyz and
    /metrics; a page at /. Requests are answered together in one continuous batch. Ctrl-C and
    SIGTERM let running requests finish. Prompts and answers are not logged.

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
    from clew.hallucination.live.page.routes import PAGE
    from clew.hallucination.live.page.stored import open_page_files
    from clew.hallucination.live.service.app import build_app
    from clew.hallucination.live.service.service import Metrics, ServiceSettings
    from clew.hallucination.live.session import Session
    from clew.pages.api import Lifecycle, read_keys
    from clew.pages.service import Address, Loaded, connection_limits, run_service

    report = given.reporter or log_event
    settings = select(ServiceSettings, given)
    keys = read_keys(as_path(given.api_keys_file), given.api_keys_env)
    address = select(Address, given, keys=keys)
    limits = connection_limits(given.max_body_bytes)
    check_exists("detector", given.detector)
    files = open_page_files(
        as_path(given.traces), as_path(given.scores_file), tuple(map(Path, given.comparisons))
    )
    lifecycle, metrics = Lifecycle(given.drain_seconds), Metrics()

    def load() -> "Loaded":
        # What is fastest now need not be for long: a server says that cores are scarce, no more.
        count = torch.get_num_threads() if given.threads is None else given.threads
        threads = Threads(count, report)
        found: str | Path | Detector | None = given.detector
        model: str | LoadedModel | None = given.model
        if found is None:
            found, model = _ready(given, report, lifecycle)
        report(Note("loading the model"))
        session = Session.open(
            found,
            model=model,
            **given.placement,
            max_rows=given.max_rows,
            max_waiting=given.max_waiting,
            reporter=report,
            threads=threads,
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
    given: ServeSettings, reporter: Reporter, lifecycle: "Lifecycle"
) -> "tuple[Detector, LoadedModel]":
    """The ready detector and the built-in model, which it is built with if there is none yet."""
    from clew.hallucination.capture import load_model
    from clew.hallucination.live.built_in_detector import ready_detector
    from clew.hallucination.llm.embedded import EMBEDDED_NAME

    loaded = load_model(given.model or EMBEDDED_NAME, **given.placement)
    found = ready_detector(loaded, reporter, lambda: lifecycle.phase == "draining")
    return found, loaded
