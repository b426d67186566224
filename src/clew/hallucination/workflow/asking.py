"""Ask a model, or serve it over OpenAI's API, and see how far each answer can be trusted."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from clew.base.commands import Watched, select, takes
from clew.base.errors import InputError, StoppedError
from clew.base.progress import Note, Reporter, StepStarted, log_event, report_work
from clew.base.settings import (
    as_path,
    check_exists,
    check_folders,
    check_least,
    check_numbers,
    check_positive,
)
from clew.base.urls import local_path
from clew.hallucination.grounded import is_reader
from clew.hallucination.hub import READY, fetch_detector, find_origin
from clew.hallucination.workflow.preparing import (
    ModelPlacement,
    OnRisk,
    RowSettings,
    load_libraries,
)
from clew.storage.run_file import NeverFromFile

if TYPE_CHECKING:
    from pandas import DataFrame

    from clew.hallucination.capture import LoadedModel
    from clew.hallucination.detectors import Detector
    from clew.hallucination.live.feedback import Feedback
    from clew.hallucination.live.page.stored import PageFiles
    from clew.hallucination.live.service.service import Metrics, ServiceSettings
    from clew.hallucination.live.service.telemetry import Telemetry
    from clew.hallucination.live.service.upstream import UpstreamSettings
    from clew.hallucination.live.session import Asker, AskResult, Session
    from clew.hallucination.questions import Question
    from clew.pages.api import ApiKeys, Lifecycle
    from clew.pages.service import Address, Loaded


@dataclass(frozen=True, kw_only=True)
class AskSettings(ModelPlacement, RowSettings, Watched):
    """What `ask` takes.

    Args:
        question: The question, or several.
        questions: A file of questions (.jsonl, .json, .csv, .tsv, .parquet, .arrow), a folder, a
            Hugging Face dataset as name:config:split, or a built-in set such as facts or culture.
        context: Text to answer from; for all questions that do not have their own.
        num_samples: Use only the first N questions of `questions`. [default: all]
        detector: Folder of a detector, such as the one that "clew compare" keeps, or
            hf://owner/name[@revision] on the Hub. [default: ready, which comes with clew, for the
            built-in model]
        model: The model that the detector was trained for, if it is now elsewhere: a Hugging Face
            model ID, a local folder or a .gguf file. [default: the one that the detector names]
        max_new_tokens: Maximum length of an answer, in tokens. [default: as in training]
        temperature: Sampling temperature; 0 always takes the most likely token.
        top_p: Sample only from the most likely tokens that have this probability together.
        seed: Seed of the sampling. [default: a random one]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
        should_stop: Called between answers; when it returns True, the call stops.
    """

    question: str | Sequence[str] = field(default=(), kw_only=False)
    questions: "str | Path | Sequence[str | Mapping[str, Any]] | DataFrame | None" = None
    context: str | None = None
    num_samples: int | None = None
    detector: "str | Path | Detector | None" = None
    model: "str | Path | LoadedModel | None" = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    threads: int | None = None


@takes(AskSettings)
def ask(given: AskSettings) -> "AskResult":
    """Ask a language model, and estimate for each answer the probability that it is hallucinated.

    Without a detector, the built-in model is asked, with the detector that comes with clew.

    Returns:
        The answers: a sequence, in which each has `text`, `risk`, `risk_level`, `state` and
        `tokens`, and a table with one row per answer.

    Raises:
        InputError: There is no question, or a setting, the model or the detector cannot be used.
        StoreError: The detector is damaged.
        StoppedError: `should_stop` returned True.

    Examples:
        >>> answers = clew.ask("In which country is Tartu?")
        >>> answers[0].text, answers[0].risk
    """
    from clew.hallucination.live.session import AskResult

    asked = read_questions(given)
    answers = []
    with open_asker(given) as asker:
        for answer in asker.ask(asked):
            answers.append(answer)
            if given.should_stop():
                raise StoppedError(f"stopped after {len(answers):,} of {len(asked):,} answers.")
    return AskResult(answers=tuple(answers))


def read_questions(given: AskSettings) -> "list[Question]":
    """The questions given one by one, then those of a file or a table. Raises InputError if there
    is none."""
    from clew.hallucination.questions import collect_questions, load_questions

    question, questions, most = given.question, given.questions, given.num_samples
    if not isinstance(question, Iterable):
        raise InputError(f"the question is {question!r:.100}: give a text, or a list of texts.")
    single = [question] if isinstance(question, str) else list(question)
    if single and all(isinstance(one, str) and not one.strip() for one in single):
        raise InputError('the question is empty. Give one, such as "In which country is Tartu?".')
    report = given.reporter or log_event
    sets = [collect_questions(single)] if single else []
    if isinstance(questions, str | Path):
        sets.append(load_questions(str(questions), most, given.row_format, report))
    elif questions is not None:
        sets.append(collect_questions(questions, most, given.row_format, report))
    if not sets:
        raise InputError('there is no question. Give one, such as "In which country is Tartu?".')
    for skipped in (one for some in sets for one in some.skipped):
        report(Note(f"excluded: {skipped.where}: {skipped.reason}"))
    found = (one for some in sets for one in some.questions)
    return [replace(one, context=one.context or given.context) for one in found]


def open_asker(given: AskSettings) -> "Asker":
    """Load the detector and its model, and get ready to answer. Raises as `ask` does."""
    from clew.hallucination.detectors.folder import check_detector
    from clew.hallucination.llm.placement import check_reachable
    from clew.hallucination.llm.requests import Sampling

    reporter = given.reporter or log_event
    sampling = select(Sampling, given)
    check_least("max_new_tokens", given.max_new_tokens)
    given = replace(given, detector=fetch_detector(_choose_detector(given), reporter))
    if is_reader(given.detector):
        raise InputError(
            "a reader compares answers that exist with their sources, and cannot be asked: use "
            '"clew check", or give a detector.',
            setting="detector",
            value=given.detector,
        )
    check_detector(given.detector)
    check_reachable(given.model)
    # Before the imports, which take seconds.
    with report_work(reporter, StepStarted(name="loading the model and its detector")):
        from clew.hallucination.live.session import Asker

        session = _open_session(given, reporter, {})
        return Asker(session=session, max_new_tokens=given.max_new_tokens, sampling=sampling)


def _choose_detector(given: "AskSettings | ServeSettings") -> "str | Path | Detector":
    """The given one, or the ready one, which is for the built-in model alone. Raises InputError."""
    from clew.hallucination.llm.embedded import EMBEDDED_NAME

    if given.detector is not None:
        return given.detector
    name = getattr(given.model, "name", given.model)
    if name not in (None, EMBEDDED_NAME):
        raise InputError(
            f"there is a ready detector for {EMBEDDED_NAME} only. Give the `detector` of this "
            'model, which "clew compare" keeps.',
            setting="model",
            value=name,
        )
    return READY


def _open_session(
    given: "AskSettings | ServeSettings", reporter: Reporter, sizes: Mapping[str, Any]
) -> "Session":
    """The detector with its model."""
    from clew.base.cpu import Threads
    from clew.hallucination.live.session import Session

    assert given.detector is not None  # chosen before
    model = str(given.model) if isinstance(given.model, Path) else given.model
    chosen = Threads(given.threads, reporter)
    placed = {**given.placement, **sizes}
    return Session.open(given.detector, model=model, **placed, reporter=reporter, threads=chosen)


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ModelPlacement, OnRisk):
    """What `serve` takes.

    Args:
        detector: Folder of a detector, such as the one that "clew compare" keeps, or
            hf://owner/name[@revision] on the Hub; or grounded, the built-in reader, or the folder
            of a reader: answers are then only checked against their sources. [default: ready, which
            comes with clew, for the built-in model]
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
        reader: Folder of a reader of your own, for /v1/check. It is loaded with the first answer to
            check. [default: the built-in one]
        upstream: URL of another server's API, such as http://host:8000/v1. It generates the
            answers: every request below /v1/ goes to it, and its answers come back with their risk.
            The detector may then be a reader, such as grounded, which needs no model's states.
        upstream_key_env: Environment variable that contains the API key for `upstream`. [default:
            what clients send, if this server has no API keys of its own]
        engine: What generates the answers: clew's own engine, or vLLM, which is started with the
            detector in it. That needs a detector on states and token probabilities, such as "clew
            compare" keeps with `engine="vllm"`.
        engine_args: Further arguments of vLLM's server, as its own command takes them.
        check: When streams from `upstream` are checked: at the end of an answer, or also sentence
            by sentence.
        check_seconds: How long a finished answer of `upstream` may wait for its risk; then it is
            delivered as not checked.
        max_rows: Number of answers to generate at once.
        max_waiting: Number of answers that may wait; more requests are refused with status 429.
        max_prompt_tokens: Maximum length of a prompt. [default: what the model takes]
        max_tokens: Maximum length of an answer, and its default in a chat.
        max_body_bytes: Maximum size of a request.
        request_seconds: Maximum time of a request.
        drain_seconds: Time for running requests to finish after Ctrl-C or SIGTERM.
        log_requests: Log prompts and answers.
        feedback_file: File for the labels that people give to answers, on which "clew adapt" fits.
            [default: feedback.jsonl in the detector's folder]
        keep_answers: Keep the question, the answer and its correction with a label. Otherwise, only
            numbers are kept, and corrected answers are refused.
        max_recent: Number of recent answers that wait in memory for a label; 0 takes no feedback.
        max_labels: Number of labels to keep, changed ones included.
        traces: Folder of a trace store to browse on the page.
        scores_file: Scores of its answers, as "clew label" writes them.
        comparisons: Folders of comparisons to show on the page.
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
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
    reader: str | Path = "grounded"
    upstream: Annotated[str | None, NeverFromFile] = None
    upstream_key_env: Annotated[str | None, NeverFromFile] = None
    engine: Literal["clew", "vllm"] = "clew"
    engine_args: Annotated[str, NeverFromFile] = ""
    check: Literal["answer", "sentence"] = "answer"
    check_seconds: float = 10.0
    max_rows: int = 64
    max_waiting: int = 256
    max_prompt_tokens: int | None = None
    max_tokens: int = 1024
    max_body_bytes: int = 1_000_000
    request_seconds: float = 300.0
    drain_seconds: float = 20.0
    log_requests: Annotated[bool, NeverFromFile] = False
    feedback_file: Annotated[str | Path | None, NeverFromFile] = None
    keep_answers: Annotated[bool, NeverFromFile] = False
    max_recent: int = 4096
    max_labels: int = 10_000
    traces: str | Path | None = None
    scores_file: str | Path | None = None
    comparisons: Sequence[str | Path] = ()
    threads: int | None = None
    reporter: Reporter | None = None


@takes(ServeSettings)
def serve(given: ServeSettings) -> None:
    """Serve a language model over OpenAI's API, with the risk of hallucination in every answer.

    POST /v1/chat/completions, /v1/completions, /v1/score, /v1/check and /v1/feedback; GET
    /v1/models, /healthz, /readyz and /metrics; a page at /. Requests are answered together in one
    continuous batch. Ctrl-C and SIGTERM let running requests finish. Prompts and answers are not
    logged.

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
    report = given.reporter or log_event
    chosen = given.detector if given.engine == "vllm" else _choose_detector(given)
    given = replace(
        given,
        detector=fetch_detector(chosen, report),
        reader=fetch_detector(given.reader, report, "reader"),
    )
    keys, address = _check_serving(given)
    load_libraries(report)
    from clew.hallucination.grounded import load_reader
    from clew.hallucination.grounded.reader import read_settings, reader_folder
    from clew.hallucination.live.page.routes import PAGE
    from clew.hallucination.live.page.stored import open_page_files
    from clew.hallucination.live.service.app import build_app, build_reader_app
    from clew.hallucination.live.service.service import Metrics, ServiceSettings
    from clew.hallucination.live.service.telemetry import open_telemetry
    from clew.pages.api import Lifecycle
    from clew.pages.service import Loaded, connection_limits, run_service

    settings = select(ServiceSettings, given)
    limits = connection_limits(given.max_body_bytes)
    upstream = _read_upstream(given, has_keys=bool(keys))
    is_alone = is_reader(given.detector)
    name = given.detector if is_alone and given.detector is not None else given.reader
    read_settings(reader_folder(name))  # refuses what is no reader before any work
    open_reader = partial(load_reader, name, device=given.device)
    files = open_page_files(
        as_path(given.traces), as_path(given.scores_file), tuple(map(Path, given.comparisons))
    )
    lifecycle, metrics = Lifecycle(given.drain_seconds), Metrics()
    telemetry = open_telemetry(report)
    behind = f"{upstream.url} with " if upstream else ""

    def load() -> "Loaded":
        report(Note("loading the model"))
        if given.engine == "vllm":
            return _open_vllm(given, settings, lifecycle, metrics, files, telemetry)
        if is_alone:
            reader = open_reader(model=given.model)
            return Loaded(
                app=build_reader_app(
                    reader, settings, lifecycle, metrics, files, upstream, telemetry
                ),
                served=f"{behind}the reader {reader.name}",
                path="v1",
            )
        sizes = {"max_rows": given.max_rows, "max_waiting": given.max_waiting}
        session = _open_session(given, report, {**sizes, "vectors": given.max_recent > 0})
        if upstream is None:
            session.start()
        kept = session.detector
        promised = "none" if kept.promise is None else kept.promise.text
        report(Note(f"promise: {promised}"))
        return Loaded(
            app=build_app(
                session,
                settings,
                lifecycle,
                metrics,
                files,
                _open_feedback(given, kept, report),
                open_reader,
                upstream,
                telemetry,
            ),
            served=f"{behind or f'{settings.name_of(kept.model)} with '}the detector {kept.name}",
            path="v1",
            close=session.close,
        )

    try:
        run_service(address, limits, lifecycle, metrics, PAGE, load, report)
    finally:
        if telemetry is not None:
            telemetry.close()


def _check_serving(given: ServeSettings) -> "tuple[ApiKeys, Address]":
    """Check what can be checked before PyTorch is imported; returns whom the server lets in, and
    where it listens. Raises InputError or StoreError."""
    from clew.hallucination.detectors.folder import check_detector
    from clew.hallucination.grounded.folder import check_reader
    from clew.hallucination.llm.placement import check_reachable
    from clew.pages.api import read_keys
    from clew.pages.service import Address

    check_numbers(given)
    check_positive(given, "max_rows", "max_waiting", "max_tokens", "max_body_bytes")
    check_least("threads", given.threads)
    keys = read_keys(as_path(given.api_keys_file), given.api_keys_env)
    address = select(Address, given, keys=keys)
    address.check_free()
    _check_feedback(given)
    _check_engine(given)
    if not is_reader(given.detector):
        check_detector(given.detector)
    check_reader(given.reader)
    check_folders(given.traces)
    check_folders(*given.comparisons)
    check_exists("scores_file", given.scores_file)
    check_reachable(given.model)
    return keys, address


def _open_vllm(
    given: ServeSettings,
    settings: "ServiceSettings",
    lifecycle: "Lifecycle",
    metrics: "Metrics",
    files: "PageFiles",
    telemetry: "Telemetry | None",
) -> "Loaded":
    from clew.hallucination.detectors import load_detector
    from clew.hallucination.live.service.app import build_vllm_app
    from clew.hallucination.live.service.upstream import UpstreamSettings
    from clew.hallucination.live.vllm import VllmServer
    from clew.pages.service import Loaded

    assert given.detector is not None  # checked before
    detector = load_detector(given.detector)
    server = VllmServer(detector, given.model, given.engine_args)
    try:
        server.wait(lambda: lifecycle.phase == "draining")
        upstream = UpstreamSettings(url=f"{server.url}/v1", check_seconds=given.check_seconds)
        app = build_vllm_app(
            server, detector, settings, lifecycle, metrics, files, upstream, telemetry
        )
    except BaseException:
        server.close()
        raise
    name = settings.name_of(detector.model)
    served = f"{name} in vLLM with the detector {detector.name}"
    return Loaded(app=app, served=served, path="v1", close=server.close)


def _check_engine(given: ServeSettings) -> None:
    """Raises InputError."""
    if given.engine == "clew":
        if given.engine_args:
            raise InputError(
                'they are for vLLM: use `engine="vllm"`, or omit them.',
                setting="engine_args",
                value=given.engine_args,
            )
        return
    from clew.hallucination.llm.embedded import require_vllm

    require_vllm()
    if given.detector is None or is_reader(given.detector) or given.upstream is not None:
        raise InputError(
            "it runs a detector inside vLLM: give the folder of a detector, and no `upstream`.",
            setting="engine",
            value=given.engine,
        )


# What only a server that generates the answers itself does.
_GENERATING = ("model_name", "max_rows", "max_waiting", "max_prompt_tokens", "max_tokens")
_PASSING = ("upstream_key_env", "check", "check_seconds")
_OF_OWN_MODEL = ("device", "device_map", "offload_folder", "dtype", "threads", "feedback_file")


def _read_upstream(given: ServeSettings, *, has_keys: bool) -> "UpstreamSettings | None":
    """Raises InputError."""
    from clew.hallucination.live.service.upstream import UpstreamSettings
    from clew.pages.api import read_variable

    url, usual = given.upstream, ServeSettings()
    names: tuple[str, ...] = _PASSING if url is None else _GENERATING
    is_in_vllm = given.engine == "vllm"
    if is_in_vllm:
        names = (*_GENERATING, "upstream_key_env", "check", *_OF_OWN_MODEL)
    for name in names:
        if (value := getattr(given, name)) != getattr(usual, name):
            why = "is for answers of an `upstream`" if url is None else "has no effect on it"
            about = "give one" if url is None else "set it at the `upstream` server"
            if is_in_vllm:
                why, about = "has no effect on vLLM", "use `engine_args`, or omit it"
            raise InputError(f"it {why}: {about}.", setting=name, value=value)
    if url is None:
        return None
    if given.check == "sentence" and given.on_risk != "flag":
        raise InputError(
            'answers that may be withheld are not streamed: use "answer", or `on_risk="flag"`.',
            setting="check",
            value=given.check,
        )
    key = read_variable(given.upstream_key_env, "upstream_key_env").strip() or None
    return UpstreamSettings(
        url=url,
        key=key,
        passes_keys=not has_keys,
        check=given.check,
        check_seconds=given.check_seconds,
    )


def _check_feedback(given: ServeSettings) -> None:
    """Raises InputError."""
    check_least("max_recent", given.max_recent, 0)
    check_least("max_labels", given.max_labels)
    path = None if given.feedback_file is None else local_path(given.feedback_file)
    if path is not None and not os.access(path.parent, os.W_OK):
        raise InputError(
            "its folder does not exist, or cannot be written to.",
            setting="feedback_file",
            value=path,
        )


def _open_feedback(
    given: ServeSettings, detector: "Detector", report: Reporter
) -> "Feedback | None":
    """Raises StoreError if the file is damaged."""
    from clew.hallucination.detectors.detector_folder import hash_method
    from clew.hallucination.live.feedback import FEEDBACK_FILE, Feedback

    path, folder = given.feedback_file, detector.folder
    is_ours = folder is not None and find_origin(folder) is None and os.access(folder, os.W_OK)
    if path is None and folder is not None and is_ours:
        path = folder / FEEDBACK_FILE
    if given.max_recent == 0:
        return None
    if path is None:
        where = "nothing is written into the detector's folder, and no `feedback_file` was given"
        report(Note(f"no feedback is taken: {where}"))
        return None
    return Feedback(
        local_path(path),
        detector=hash_method(detector),
        keeps_answers=given.keep_answers,
        most_recent=given.max_recent,
        most_labels=given.max_labels,
    )
