"""Answers that another server gave are read once they are finished: by the detector with its own
copy of the model, or by a reader beside the sources in the messages. Whatever goes wrong is an
answer that was not checked."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from clew.base.errors import InputError
from clew.hallucination.detectors.data import unavailable
from clew.hallucination.live.features import Answer
from clew.hallucination.live.service.existing import Checking, Scoring
from clew.hallucination.live.service.requests import CheckItem, read_messages
from clew.hallucination.live.service.service import Service, Serving
from clew.pages.api import ApiError

logger = logging.getLogger(__name__)
ENDPOINT = "upstream"  # of these answers, in metrics
_MOST_WAITING = 512
_AT_ONCE = 64
_FAILED = "the check has failed; the server's log says why"
_CALLS = "the answer has no text: it calls tools"
_ECHO = 'the answer repeats its prompt, as "echo" asks for'
# Of the Responses API.
_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
_CONTINUES = "the request continues what only the upstream has"
# A message of the user that is as long as this holds the text that it asks about.
_LONG_MESSAGE = 500
_SOURCE_NAMES = "context|contexts|document|documents|source|sources|passage|passages|article"
_TAG = re.compile(rf"<(/?)({_SOURCE_NAMES})\b[^<>]*>", re.IGNORECASE)
_HEADING = re.compile(
    rf"[ \t]*[#*]*[ \t]*(?:({_SOURCE_NAMES})|question|query|task|instructions?|answer)\**:\**(.*)",
    re.IGNORECASE,
)

Clew = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PassedAnswer:
    """An answer of the upstream, or its beginning, to a request with the fields `asked`. It is the
    choice `index` of `choices` in the response `id`, "" for a beginning, which gets no feedback."""

    asked: Mapping[str, Any]
    is_chat: bool
    text: str
    id: str = ""
    index: int = 0
    choices: int = 1
    reason: str | None = "stop"
    has_calls: bool = False

    @property
    def problem(self) -> str | None:
        """Why nothing can read it."""
        if not self.is_chat and self.asked.get("echo"):
            return _ECHO
        if self.is_chat and any(self.asked.get(name) for name in _ELSEWHERE):
            return _CONTINUES
        return _CALLS if self.has_calls and not self.text.strip() else None

    @property
    def prompt(self) -> Any:
        """That of a completion: every prompt has `n` answers."""
        given = self.asked.get("prompt")
        if not isinstance(given, list) or not given or isinstance(given[0], int):
            return given
        return given[min(self.index // self.siblings, len(given) - 1)]

    @property
    def siblings(self) -> int:
        """How many answers every prompt has."""
        n = self.asked.get("n")
        return n if isinstance(n, int) and n > 0 else 1


class DetectorInspector:
    """Reads answers with the detector's own copy of the model, as /v1/score does."""

    def __init__(self, service: Service, scoring: Scoring) -> None:
        self._service, self._scoring = service, scoring
        self.name = service.session.detector.name

    def __call__(self, answers: Sequence[PassedAnswer]) -> list[Clew]:
        read = [self._read(one) for one in answers]
        found = []
        for one, answer, scored in zip(answers, read, self._scoring.pass_all(read), strict=True):
            found.append(self._scoring.describe(answer, scored, ENDPOINT))
            if one.id:
                place = one.id, one.index, one.choices
                texts: dict[str, Any] = {"question": answer.question, "answer": one.text}
                texts |= {"messages": one.asked.get("messages")}
                self._service.await_label(place, scored.risk, scored.vector, texts)
        return found

    def _read(self, one: PassedAnswer) -> Answer:
        session = self._service.session
        prompt, question, problem = list[int](), "", one.problem
        try:
            if problem is None:
                prompt, question = self._encode(one)
        except ApiError as error:
            problem = f"the request cannot be read: {error.message}"
        except InputError as error:
            problem = f"the request cannot be read: {error}"
        if one.is_chat:
            [tokens] = session.encoder.encode_answers([one.text])
        else:
            tokens = session.tokenizer(one.text, add_special_tokens=False)["input_ids"]
        ended = "canceled" if one.reason is None else "length" if one.reason == "length" else "end"
        return Answer(
            prompt=prompt,
            tokens=tokens,
            question=question,
            text=one.text,
            stop_reason=ended,
            name=question,
            problem=problem,
        )

    def _encode(self, one: PassedAnswer) -> tuple[list[int], str]:
        given, context = one.asked.get("messages"), one.asked.get("context")
        if not one.is_chat:
            if not isinstance(one.prompt, str) and not _is_tokens(one.prompt):
                raise InputError("its prompt is neither a text nor a list of token ids.")
            return self._service.encode_text(one.prompt)
        if not isinstance(given, list) or not given:
            raise InputError("it has no messages.")
        context = context if isinstance(context, str) else None
        tools = [tool for tool in as_list(one.asked.get("tools")) if isinstance(tool, dict)]
        if one.asked.get("tool_choice") == "none":
            tools = []
        return self._service.encode_chat(read_messages(given), context, tools=tools)[:2]


def _is_tokens(prompt: Any) -> bool:
    is_list = isinstance(prompt, list) and bool(prompt)
    return is_list and all(isinstance(token, int) and token >= 0 for token in prompt)


class ReaderInspector:
    """Reads answers beside the sources in the request, as /v1/check does."""

    def __init__(self, checking: Checking) -> None:
        self._checking, self.name = checking, checking.reader.name

    def __call__(self, answers: Sequence[PassedAnswer]) -> list[Clew]:
        found = self._checking.read([self._item(one) for one in answers], endpoint=ENDPOINT)
        for one, clew in zip(answers, found, strict=True):
            clew |= {"tokens": [], "reason": one.problem or clew["reason"]}
        return found

    def _item(self, one: PassedAnswer) -> CheckItem:
        if one.problem is not None:
            return CheckItem(answer="", context="")
        sources, question = find_sources(one)
        return CheckItem(answer=one.text, context=list(sources), question=question)


def find_sources(one: PassedAnswer) -> tuple[tuple[str, ...], str | None]:
    """The texts that an answer is to be supported by, and the question. Sources are the field
    `documents`, the results of tools, and in other messages what stands in tags such as <context>,
    or below a line such as "Context:". Without any, a long last message of the user is one."""
    asked = one.asked
    given = asked.get("messages") if one.is_chat else [{"role": "user", "content": one.prompt}]
    messages = [m for m in given if isinstance(m, dict)] if isinstance(given, list) else []
    sources = [_text_of(part) for part in as_list(asked.get("documents"))]
    sources += [_text_of(asked.get("context"))]
    question, last = None, ""
    for message in messages:
        text, role = _text_of(message.get("content")), message.get("role")
        if role in ("tool", "function"):
            sources.append(text)
        elif role != "assistant":
            found, rest = split_sources(text)
            sources += found
            if role == "user":
                question, last = rest.strip() or None, text
    sources = [text for text in sources if text.strip()]
    if not sources and len(last) >= _LONG_MESSAGE:
        return (last,), None
    return tuple(sources), question


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text_of(content: Any) -> str:
    """That of a message's content, a document, or a list of their parts."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text_of, content)))
    if isinstance(content, dict):
        content = content.get("text") or content.get("content")
        return _text_of(content) if isinstance(content, list) else content or ""
    return content if isinstance(content, str) else ""


def split_sources(text: str) -> tuple[list[str], str]:
    """The sources that a message marks, and the rest of it."""
    sources, rest = list[str](), list[str]()
    name, start = "", 0
    for tag in _TAG.finditer(text):
        is_end, found = bool(tag[1]), tag[2].lower()
        if not name and not is_end:
            rest.append(text[start : tag.start()])
            name, start = found, tag.end()
        elif is_end and found == name:
            sources.append(text[start : tag.start()])
            name, start = "", tag.end()
    rest.append(text[start:])
    return (sources, "".join(rest)) if sources else _split_by_headings(text)


def _split_by_headings(text: str) -> tuple[list[str], str]:
    parts: list[tuple[bool, list[str]]] = [(False, [])]
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is None:
            parts[-1][1].append(line)
        else:
            parts.append((heading[1] is not None, [heading[2]]))
    sources = ["\n".join(lines).strip() for is_source, lines in parts if is_source]
    rest = ["\n".join(lines) for is_source, lines in parts if not is_source]
    return [source for source in sources if source], "\n".join(rest)


class Inspector(Protocol):
    """Gives answers their clew objects; `name` is that of the detector or reader."""

    name: str

    def __call__(self, answers: Sequence[PassedAnswer]) -> list[Clew]: ...


class Inspection:
    """Checks answers in a thread of its own, all that wait together. The inspector may fail, or
    take longer than `seconds`: the answer is then not checked."""

    def __init__(self, inspector: Inspector, service: Serving, seconds: float) -> None:
        self._inspect, self._name, self._service = inspector, inspector.name, service
        self.seconds = seconds
        self._waiting: deque[tuple[PassedAnswer, asyncio.Future[Clew]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-inspection")

    async def check(self, answer: PassedAnswer) -> Clew:
        """The clew object of an answer. Never raises."""
        if len(self._waiting) >= _MOST_WAITING:
            return self.give_up(f"{len(self._waiting):,} answers wait to be checked")
        done: asyncio.Future[Clew] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(self.seconds):
                return await done
        except TimeoutError:
            return self.give_up(f"the check was not finished within {self.seconds:g} s")

    def give_up(self, reason: str) -> Clew:
        """The clew object of an answer that was not checked."""
        risk = unavailable(reason, method=self._name)
        self._service.metrics.count_answer(risk, ENDPOINT)
        withheld = self._service.settings.withholds(None)
        about: Clew = {"detector": self._name, "warning": None, "tokens": []}
        return {**risk.to_dict(), **about, "withheld": withheld, "promise": None}

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Nobody waits any more for those whose time is up, or whose client has left.
            taken = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            taken = [(answer, done) for answer, done in taken if not done.done()]
            if not taken:
                continue
            found = await loop.run_in_executor(self._thread, self._try, [one for one, _ in taken])
            for (_, done), clew in zip(taken, found, strict=True):
                if not done.done():
                    done.set_result(clew or self.give_up(_FAILED))

    def _try(self, answers: list[PassedAnswer]) -> Sequence[Clew | None]:
        """None for those that fail by themselves."""
        try:
            return self._inspect(answers)
        except Exception as error:
            if len(answers) == 1:
                logger.exception("an answer could not be checked: %s", error)
                return [None]
            return [self._try([one])[0] for one in answers]
