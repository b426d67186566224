"""What the routes of the service share: its settings and counts, how a request becomes work for a
session, and the answers while they are generated."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.base.memory import is_out_of_memory
from clew.base.settings import check_numbers, check_positive
from clew.hallucination.detectors.data import RiskPolicy, unavailable
from clew.hallucination.detectors.promises import Traffic
from clew.hallucination.live.delivery import LiveAnswer
from clew.hallucination.live.feedback import Feedback, RecentAnswer
from clew.hallucination.live.service.requests import (
    GUARDRAIL_PATH,
    Asked,
    ChatRequest,
    CompletionRequest,
    Messages,
    last_question,
    only_question,
    out_of_time,
    too_long,
    unsupported,
    unusable,
)
from clew.hallucination.live.service.telemetry import operation
from clew.hallucination.live.service.tools import CALLS, CallReader, Said, ToolFormat
from clew.hallucination.llm.prompts import Cut
from clew.hallucination.llm.requests import Request, Token
from clew.pages.api import (
    SECONDS,
    ApiError,
    Counter,
    Histogram,
    Lifecycle,
    RequestMetrics,
    busy,
    failed,
    invalid,
    out_of_memory,
)

if TYPE_CHECKING:
    from clew.hallucination.detectors.data import Risk
    from clew.hallucination.grounded import GroundedReading
    from clew.hallucination.live.session import Session
    from clew.hallucination.llm.grammar import Grammar

logger = logging.getLogger(__name__)
Event = Token | LiveAnswer
PromptSource = Literal["detector", "messages"]
_NO_CONTEXT = (
    "'context' is for a question in the detector's own prompt: one message of the user. Put the "
    "text in a message."
)
_NO_TOOLS = (
    "'tools' cannot be used where answers may be withheld: a call is not an answer, and cannot be "
    "checked. Omit them."
)
_RISKS = tuple(place / 10 for place in range(1, 11))
_PATHS = (
    *("/", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/v1/score"),
    *("/score", "/v1/check", "/v1/feedback", "/healthz", "/readyz", "/metrics", GUARDRAIL_PATH),
)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(RiskPolicy):
    """`model_name` is the model's name in the API (None: its own). `prompt` "detector" puts a
    conversation of one user message in the detector's prompt and cuts its answer as the training
    answers were; "messages" sends every conversation to the model as it is.

    A request may have at most `max_prompt_tokens` (None: the model's context) and generate
    `max_tokens` per answer, for `max_choices` answers, within `request_seconds`; a request to score
    may have `max_items`. After the signal to end, requests get `drain_seconds`. Prompts and answers
    are logged only if `log_requests`."""

    model_name: str | None = None
    prompt: PromptSource = "detector"
    max_prompt_tokens: int | None = None
    max_tokens: int = 1024
    max_choices: int = 16
    max_items: int = 256
    request_seconds: float = 300.0
    drain_seconds: float = 20.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self)
        check_positive(self, "max_tokens", "max_choices", "max_items", "max_prompt_tokens")
        if not 0 < self.request_seconds < math.inf:
            raise InputError(
                "give a number of seconds above 0.",
                setting="request_seconds",
                value=self.request_seconds,
            )
        if not 0 <= self.drain_seconds < math.inf:
            raise InputError(
                "give a number of seconds, 0 or more.",
                setting="drain_seconds",
                value=self.drain_seconds,
            )

    def name_of(self, model: Mapping[str, Any]) -> str:
        """The name of a model in the API. That of a folder on this machine is only its last part:
        clients learn nothing of the others."""
        name = self.model_name or str(model["id"])
        return Path(name).name if self.model_name is None and Path(name).exists() else name


class Metrics(RequestMetrics):
    """Everything that is counted."""

    def __init__(self) -> None:
        super().__init__(_PATHS)
        self.prompt_tokens = Counter("clew_prompt_tokens_total", "Tokens of prompts.")
        self.tokens = Counter("clew_generated_tokens_total", "Tokens of answers.")
        self.scored = Counter(
            "clew_answers_total", "Answers by endpoint, state of the check and verdict."
        )
        self.first_token = Histogram(
            "clew_first_token_seconds", "Time to the first token, in seconds.", SECONDS
        )
        self.risks = Histogram("clew_risk", "Risk of answers that have one.", _RISKS)
        self.feedback = Counter("clew_feedback_total", "Feedback by label.")

    def count_answer(self, risk: "Risk | GroundedReading", endpoint: str) -> None:
        verdict = risk.verdict or "none"
        self.scored.add(endpoint=endpoint, state=risk.state, verdict=verdict)
        if risk.risk is not None:
            self.risks.observe(risk.risk)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What every service has."""

    settings: ServiceSettings
    lifecycle: Lifecycle
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Service(Serving):
    """A session behind an API, and what people say about its answers, if that is kept."""

    session: "Session"
    feedback: Feedback | None = None
    started: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def traffic(self) -> Traffic | None:
        """The latest answers, if something is promised of answers like the labeled ones."""
        promise = self.session.detector.promise
        return None if promise is None else Traffic(promise)

    def promise_for(self, risk: "Risk", *, is_usual: bool) -> dict[str, float] | None:
        """What is promised of the answer: nothing unless it is shown, and like those that it was
        promised for: in the detector's own prompt (`is_usual`), and among others like them."""
        promise = self.session.detector.promise
        if promise is None or self.traffic is None or not is_usual or risk.risk_level != "low":
            return None
        return None if self.traffic.difference else promise.limits

    def guard(self, answer: LiveAnswer) -> LiveAnswer:
        """What clients may see of an answer."""
        if not self.settings.withholds(answer.risk.risk_level):
            return answer
        return replace(
            answer, text=self.settings.replacement or "", tokens=(), vector=None, is_withheld=True
        )

    @cached_property
    def model_name(self) -> str:
        return self.settings.name_of(self.session.detector.model)

    def check_model(self, name: str | None) -> None:
        """One model is served: a request may omit its name, but not name another."""
        own = self.model_name
        if name is not None and name != own:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist: this server has '{own}'.",
                param="model",
                code="model_not_found",
            )

    def is_usual(self, asked: Asked) -> bool:
        """Whether a request is put in the detector's own prompt."""
        is_question = not isinstance(asked, CompletionRequest) and asked.question
        return bool(is_question) and self.settings.prompt == "detector"

    def prepare(self, asked: Asked) -> list[Request]:
        """The requests to the engine: every prompt `n` times. Raises ApiError. Tokenizes, so it
        runs in a thread of its own."""
        count, most = asked.answers, self.settings.max_choices
        most = min(most, self.session.most_at_once or most)
        if count > most:
            text = f"this server gives at most {most} answers per request"
            raise invalid("n", f"The request asks for {count} answers: {text}.")
        try:
            prompts = self._encode(asked)
        except InputError as error:
            raise unusable(asked.prompt_name, error) from None
        limits = [self._answer_tokens(asked, request) for request in prompts]
        found = [
            replace(request, max_new_tokens=limit)
            for request, limit in zip(prompts, limits, strict=True)
            for _ in range(asked.n)
        ]
        return [replace(one, sampling=asked.sampling(place)) for place, one in enumerate(found)]

    def _encode(self, asked: Asked) -> list[Request]:
        """Requests with the length that an answer has if the client does not say."""
        longest, made = self.settings.max_tokens, self.session.generation
        make = partial(Request, stop=asked.stops, top_logprobs=asked.alternatives or 0)
        if isinstance(asked, CompletionRequest):
            encoded = [self.encode_text(prompt) for prompt in asked.prompts]
            return [make(prompt=t, max_new_tokens=longest, question=q) for t, q in encoded]
        self._check_tools(asked)
        tokens, question, is_detectors = self.encode_chat(
            asked.conversation,
            asked.context,
            tools=asked.offered_tools,
            is_json=bool(asked.answer_schema),
        )
        most = min(made.max_new_tokens, longest) if is_detectors else longest
        cut: Cut = made.cut if is_detectors else "none"
        grammar = self.compile(asked)
        return [
            make(prompt=tokens, max_new_tokens=most, question=question, cut=cut, grammar=grammar)
        ]

    @cached_property
    def tool_format(self) -> ToolFormat:
        """Raises InputError for a model that knows no tools."""
        return ToolFormat(self.session.tokenizer)

    def _check_tools(self, asked: ChatRequest) -> None:
        """Raises ApiError if the model cannot be offered tools, or read what they gave."""
        if asked.offered_tools and self.settings.on_risk != "flag":
            raise unsupported("tools", _NO_TOOLS)
        has_results = any(one["role"] == "tool" for one in asked.conversation)
        try:
            _ = self.tool_format if asked.offered_tools or has_results else None
        except InputError as error:
            raise unsupported("tools" if asked.offered_tools else "messages", str(error)) from None

    def compile(self, asked: ChatRequest) -> "Grammar | None":
        """The grammar of the answer, if it must be JSON. Raises ApiError. Runs in a thread of its
        own, as `prepare` does, which finds it again."""
        if asked.answer_schema is None:
            return None
        try:
            return self.session.grammars.compile(asked.answer_schema)
        except InputError as error:
            raise invalid("response_format", f"'response_format': {error}") from None

    def encode_chat(
        self,
        messages: Messages,
        context: str | None,
        path: str = "",
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        is_json: bool = False,
    ) -> tuple[list[int], str, bool]:
        """The prompt of a conversation, the question in it (the last message of the user), and
        whether it is the detector's own prompt, which offers no tools and asks for no JSON. `path`
        is that to the fields, for errors."""
        encoder = self.session.encoder
        is_detectors = self.settings.prompt == "detector" and not tools and not is_json
        question = only_question(messages) if is_detectors else None
        if question is not None:
            return encoder.encode(question, context), question, True
        if context is not None:
            raise invalid(f"{path}context", _NO_CONTEXT)
        return encoder.encode_messages(messages, tools), last_question(messages), False

    def call_reader(self, asked: Asked, request: Request) -> CallReader | None:
        """Reads the calls in an answer, if the model may call tools."""
        if not isinstance(asked, ChatRequest) or not asked.offered_tools:
            return None
        return self.tool_format.reader(
            request.prompt, asked.offered_tools, parallel=asked.parallel_tool_calls
        )

    def with_calls(self, answer: LiveAnswer, said: Said) -> LiveAnswer:
        """An answer that says this: if it calls tools, nobody has checked it."""
        answer = replace(answer, text=said.content, reasoning=said.reasoning, calls=said.calls)
        if not said.calls:
            return answer
        risk = unavailable(CALLS, method=self.session.detector.name)
        tokens = tuple(replace(token, risk=None) for token in answer.tokens)
        return replace(answer, risk=risk, tokens=tokens, vector=None)

    def encode_text(self, prompt: str | list[int]) -> tuple[list[int], str]:
        """The tokens of a completion's prompt, and its text."""
        if isinstance(prompt, str):
            return self.session.encoder.encode_text(prompt), prompt
        size, largest = len(self.session.tokenizer), max(prompt)
        if largest >= size:
            raise invalid("prompt", f"{largest} is not a token of the model, which has {size:,}.")
        return prompt, str(self.session.tokenizer.decode(prompt))

    def _answer_tokens(self, asked: Asked, request: Request) -> int:
        """How long the answer may be. Raises ApiError if prompt or answer are too long."""
        has, most = len(request.prompt), self.settings.max_prompt_tokens
        if most is not None and has > most:
            text = f"The prompt has {has:,} tokens: this server takes at most {most:,}."
            raise too_long(asked.prompt_name, text)
        wanted = asked.limit or request.max_new_tokens
        if wanted > self.settings.max_tokens:
            text = f"{asked.limit_name} is {wanted:,}: give at most {self.settings.max_tokens:,}."
            raise ApiError(422, text, param=asked.limit_name, code="limit_exceeded")
        context = self.session.max_tokens
        room = context - has
        if room < (wanted if asked.limit else 1):
            raise too_long(
                asked.prompt_name,
                f"This model's maximum context length is {context:,} tokens, but the prompt "
                f"has {has:,} and the answer may have {wanted:,}. Shorten the prompt or reduce "
                f"{asked.limit_name}.",
            )
        return min(wanted, room)

    def start(self, asked: Asked, requests: Sequence[Request]) -> "Answering":
        """Start to generate; raises ApiError if the queue is full."""
        try:
            return Answering(
                self.session,
                requests,
                self.settings.request_seconds,
                self.metrics.first_token.observe,
                # Tokens wait for the risk if the answer may be withheld.
                is_stream=asked.stream and self.settings.on_risk == "flag",
            )
        except QueueFullError as error:
            raise busy(error.waiting) from None
        except InputError as error:
            raise too_long(asked.prompt_name, str(error)) from None
        except ClewError as error:
            logger.error("a request cannot be answered: %s", error)
            raise failed() from None

    def record(
        self, asked: Asked, request: Request, answer: LiveAnswer, response: str, index: int
    ) -> None:
        """Count an answer, which may get feedback now; log it only if that was asked for."""
        endpoint = "chat" if asked.is_chat else "completions"
        operation().add_answer(
            {
                **answer.risk.to_dict(),
                "detector": self.session.detector.name,
                "withheld": self.settings.withholds(answer.risk.risk_level),
            },
            response=response,
            index=index,
            text=answer.text,
            reason=answer.finish_reason,
        )
        self.metrics.tokens.add(len(answer.tokens))
        self.metrics.count_answer(answer.risk, endpoint)
        if self.traffic is not None and self.is_usual(asked):
            self.traffic.add(answer.risk.state, answer.risk.risk_level)
        if self.settings.log_requests:
            prompt = self.session.tokenizer.decode(request.prompt)
            logger.info("%s: prompt %r, answer %r, %s", endpoint, prompt, answer.text, answer.risk)
        texts: dict[str, Any] = {"question": request.question, "answer": answer.text}
        if isinstance(asked, ChatRequest):
            is_more = only_question(asked.conversation) is None
            texts |= {"context": asked.context, "messages": asked.conversation if is_more else None}
        place = response, index, asked.answers
        self.await_label(place, answer.risk, answer.vector, texts)

    def await_label(
        self,
        place: tuple[str, int, int],
        risk: "Risk",
        vector: np.ndarray | None,
        texts: Mapping[str, Any],
    ) -> None:
        """An answer may get feedback now: one of a response's ID, its index in it, of so many."""
        response, index, choices = place
        if self.feedback is None:
            return
        kept = texts if self.feedback.keeps_answers else {}
        answer = RecentAnswer(
            choices=choices,
            state=risk.state,
            vector=None if vector is None else vector.copy(),  # a row of a whole batch
            reason=risk.reason,
            texts={name: text for name, text in kept.items() if text is not None},
        )
        self.feedback.recent.add(response, index, answer)


class Answering:
    """Generates the answers to some requests, all at the same time. Belongs to the loop it is made
    in; raises what the session raises if they cannot be taken. Their tokens are delivered only if
    it `is_stream`: waking the loop for each takes time from the engine. `on_first_token` gets
    the seconds that the first token took."""

    def __init__(
        self,
        session: "Session",
        requests: Sequence[Request],
        seconds: float,
        on_first_token: Callable[[float], None],
        *,
        is_stream: bool,
    ) -> None:
        self._loop, self._is_stream = asyncio.get_running_loop(), is_stream
        self._on_first_token: Callable[[float], None] | None = on_first_token
        self._events: asyncio.Queue[tuple[int, Event] | ApiError] = asyncio.Queue()
        self._started, self._seconds = self._loop.time(), seconds
        self._unfinished, self._is_open = len(requests), True
        self._tickets = []
        try:
            for place, request in enumerate(requests):
                ticket = session.submit(request)
                self._tickets.append(ticket)
                ticket.on_event(partial(self._put, place))
        except BaseException:
            self.cancel()
            raise

    async def events(self) -> AsyncGenerator[tuple[int, Event]]:
        """The number of the answer with each of its events; ends after the last answer. Raises
        ApiError, and cancels the rest, when the time is up or the server ends."""
        while self._unfinished:
            event = await self._next()
            if isinstance(event, ApiError):
                self.cancel()
                raise event
            if isinstance(event[1], LiveAnswer):
                self._unfinished -= 1
                if event[1].ended == "canceled":  # by the engine, which has failed or ended
                    self.cancel()
                    raise failed()
            yield event

    async def collect(self) -> list[LiveAnswer]:
        """All answers, in the order of the requests."""
        found = [(place, one) async for place, one in self.events() if isinstance(one, LiveAnswer)]
        return [answer for _, answer in sorted(found, key=lambda pair: pair[0])]

    def end(self, error: ApiError) -> None:
        """End the answers early, with an error; called in the loop."""
        self._events.put_nowait(error)

    def cancel(self) -> bool:
        """Take the requests out of the batch; those that are finished stay so. Returns whether
        there was something left to cancel."""
        is_left, self._is_open = self._is_open and self._unfinished > 0, False
        for ticket in self._tickets if is_left else ():
            ticket.cancel()
        return is_left

    @property
    def has_more(self) -> bool:
        """Whether the next event is there already."""
        return not self._events.empty()

    async def _next(self) -> "tuple[int, Event] | ApiError":
        deadline = self._started + self._seconds
        if self._loop.time() >= deadline:
            return out_of_time(self._seconds)
        if self.has_more:
            return self._events.get_nowait()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._events.get()
        except TimeoutError:
            return out_of_time(self._seconds)

    def _put(self, place: int, event: Event | ClewError) -> None:
        """Called in the session's thread, perhaps after the loop has ended."""
        if isinstance(event, Token):
            if self._on_first_token is not None:
                self._on_first_token(self._loop.time() - self._started)
                self._on_first_token = None
            if not self._is_stream:
                return
        told: tuple[int, Event] | ApiError
        if isinstance(event, ClewError):
            logger.error("a request has failed: %s", event)
            told = out_of_memory() if is_out_of_memory(event) else failed()
            if isinstance(event.__cause__, InputError):  # the request itself cannot be answered
                told = ApiError(422, str(event.__cause__), param="response_format")
        else:
            told = place, event
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, told)
