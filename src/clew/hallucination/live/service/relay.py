"""Responses of another server, whole or as server-sent events: the answers in them, and the `clew`
object added to them. What that server wrote stays as it is, byte for byte."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from clew.base.typed_json import compact_json
from clew.hallucination.detectors.data import LEVEL_WORDS, NO_VERDICT
from clew.hallucination.live.service.inspection import Clew, PassedAnswer, as_list
from clew.storage.reading import parse_json

DONE = b"data: [DONE]\n\n"
# A line of a stream that is longer passes unread, and so do answers that are longer together.
_LONGEST_LINE = 1 << 20
_LONGEST_TEXT = 1 << 20
_MOST_CHOICES = 128
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
# Of the Responses API: why an answer has ended, by the status of its response.
_REASONS = {"completed": "stop", "incomplete": "length", "failed": None, "cancelled": None}
_USAGE = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_TEXTS = ("input_text", "output_text")
_EVENT = "clew.risk"
# All that is kept of a response whose answer is withheld.
_KNOWN = ("id", "object", "created", "model", "system_fingerprint", "service_tier", "usage")


@dataclass(kw_only=True)
class _Choice:
    """An answer as far as it has come."""

    parts: list[str] = field(default_factory=list)
    reason: str | None = None
    has_calls: bool = False


class PassedAnswers:
    """The answers in a response to a request with the fields `asked`. `problem` says why they
    cannot be read."""

    def __init__(self, asked: Mapping[str, Any], *, is_chat: bool) -> None:
        self.asked, self.is_chat = asked, is_chat
        self.head: dict[str, Any] = {}
        self.usage: Any = None
        self.problem: str | None = None
        self._choices: dict[int, _Choice] = {}
        self._size = 0

    def add(self, response: Any) -> None:
        """A response, or a chunk of it."""
        if not isinstance(response, dict) or not isinstance(response.get("choices", []), list):
            self.problem = "the upstream's response is not one of OpenAI's API"
            return
        self.head = self.head or {name: response[name] for name in _KNOWN[:4] if name in response}
        self.usage = response.get("usage") or self.usage
        for choice in response.get("choices", []):
            self._add_choice(choice)

    def _add_choice(self, choice: Any) -> None:
        place = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(place, int) or not 0 <= place < _MOST_CHOICES:
            self.problem = "the upstream's response has a choice without a usable index"
            return
        inner = choice.get("message") or choice.get("delta") if self.is_chat else choice
        inner = inner if isinstance(inner, dict) else {}
        kept = self._choices.setdefault(place, _Choice())
        text = inner.get("content" if self.is_chat else "text")
        if isinstance(text, str) and text:
            self._size += len(text)
            if self._size > _LONGEST_TEXT:
                self.problem = f"the answer has more than {_LONGEST_TEXT:,} characters"
            else:
                kept.parts.append(text)
        reason = choice.get("finish_reason")
        kept.reason = reason if isinstance(reason, str) else kept.reason
        kept.has_calls = kept.has_calls or bool(inner.get("tool_calls"))

    def finished(self, *, is_final: bool = True) -> list[PassedAnswer]:
        """The answers as they are now."""
        name = str(self.head.get("id") or "")[:200] if is_final else ""
        return [
            PassedAnswer(
                asked=self.asked,
                is_chat=self.is_chat,
                text="".join(choice.parts),
                id=name,
                index=place,
                choices=max(1, len(self._choices)),
                reason=choice.reason if is_final else "stop",
                has_calls=choice.has_calls,
            )
            for place, choice in sorted(self._choices.items())
        ]

    def chunk(
        self, index: int, clew: Clew, content: Any = None, reason: str | None = None
    ) -> bytes:
        """A chunk of a stream that is clew's own. LangChain keeps log probabilities and drops what
        it does not know: if they were asked for, the object is in them, too."""
        empty: dict[str, Any] = {"content": [], "refusal": None} if self.is_chat else {}
        choice = {
            "index": index,
            **({"delta": content or {}} if self.is_chat else {"text": content or ""}),
            "logprobs": {**empty, "clew": clew} if self.asked.get("logprobs") else None,
            "finish_reason": reason,
            "clew": clew,
        }
        above = {"clew": clew} if len(self._choices) == 1 else {}
        return event({**self.head, "choices": [choice], **above})

    def withheld_chunks(self, index: int, clew: Clew, replacement: str | None) -> bytes:
        """What a stream has in place of an answer that is withheld."""
        clew = conceal(clew)
        told = replacement or refusal(clew)
        key = "content" if replacement else "refusal"
        content = {"role": "assistant", key: told} if self.is_chat else replacement
        return self.chunk(index, clew, content, "stop" if replacement else "content_filter")


class PassedResponse(PassedAnswers):
    """The one answer in a response of the Responses API, or in the events of one."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        super().__init__({**asked, "messages": read_input(asked), "n": 1}, is_chat=True)
        self._number = 0

    def add(self, response: Any) -> None:
        if not isinstance(response, dict):
            self.problem = "the upstream's response is not one of OpenAI's API"
            return
        number, kind = response.get("sequence_number"), response.get("type")
        self._number = number if isinstance(number, int) else self._number
        whole = response.get("response") if kind else response
        if kind == "response.output_text.delta":
            super().add({"choices": [{"delta": {"content": response.get("delta")}}]})
        elif isinstance(whole, dict) and whole.get("status") in _REASONS:
            self._add_whole(whole)

    def _add_whole(self, response: dict[str, Any]) -> None:
        """What it says, instead of what its events have said."""
        self._choices.clear()
        self._size = 0
        output = [one for one in as_list(response.get("output")) if isinstance(one, dict)]
        parts = [part for one in output for part in as_list(one.get("content"))]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        usage = response.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        message = {
            "content": "".join(text for text in texts if isinstance(text, str)),
            "tool_calls": [one for one in output if str(one.get("type")).endswith("_call")],
        }
        reason = _REASONS[response["status"]]
        super().add(
            {
                **{name: response[name] for name in ("id", "model") if name in response},
                "choices": [{"message": message, "finish_reason": reason}],
                "usage": {old: usage.get(new) for old, new in _USAGE.items()},
            }
        )

    def chunk(
        self, _index: int, clew: Clew, _content: Any = None, _reason: str | None = None
    ) -> bytes:
        self._number += 1
        about = {"type": _EVENT, "sequence_number": self._number, "clew": clew}
        return f"event: {_EVENT}\n".encode() + event(about)


def read_input(asked: Mapping[str, Any]) -> list[Any]:
    """The messages of a request to the Responses API, as the one for chats has them."""
    given, instructions = asked.get("input"), asked.get("instructions")
    messages: list[Any] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in as_list(given):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            parts = [
                {**part, "type": "text"} if part.get("type") in _TEXTS else part
                for part in as_list(item.get("content"))
                if isinstance(part, dict)
            ]
            messages.append({"role": item.get("role"), "content": parts or item.get("content")})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "type": "function"}
            call["function"] = {name: item.get(name) for name in ("name", "arguments")}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
            messages.append({"role": "tool", **result})
        elif kind != "reasoning":
            messages.append({"role": kind, "content": None})  # what nobody can read
    return messages


def event(content: Mapping[str, Any]) -> bytes:
    return f"data: {compact_json(content)}\n\n".encode()


def conceal(clew: Clew) -> Clew:
    """The object of an answer that is withheld: nothing of its text is in it."""
    return {**clew, **{name: [] for name in ("tokens", "spans", "sentences") if name in clew}}


def refusal(clew: Clew) -> str:
    level = clew.get("risk_level")
    unknown = NO_VERDICT if clew.get("state") == "out_of_distribution" else "not checked"
    return f"The answer was withheld: {LEVEL_WORDS[level] if level else unknown}."


class EventLines:
    """The lines of a stream as its bytes come. `feed` returns what may be passed on now: whole
    lines, up to the mark of the stream's end ("[DONE]"). What comes after it is dropped."""

    def __init__(self, answers: PassedAnswers) -> None:
        self._answers, self._left, self._is_skipping = answers, bytearray(), False
        self.is_done = False
        self._last: bytes = b""

    @property
    def is_between(self) -> bool:
        """Whether what was passed on ends with a whole event."""
        return not self._last.strip() and not self._left

    @property
    def separator(self) -> bytes:
        """What ends a part of an event that was passed on."""
        return b"" if self.is_between else b"\n\n"

    def feed(self, block: bytes) -> bytes:
        if self.is_done:
            return b""
        self._left += block
        passed = bytearray()
        if b"\n" in block:
            *lines, self._left = self._left.split(b"\n")
            for line in lines:
                if self._read(bytes(line)):
                    self.is_done = True
                    return bytes(passed)
                passed += line + b"\n"
        if len(self._left) > _LONGEST_LINE:
            self._is_skipping = True
            self._answers.problem = (
                f"the upstream's stream has a line of more than {_LONGEST_LINE:,} bytes"
            )
        if self._is_skipping:
            passed += self._left
            self._left.clear()
        return bytes(passed)

    def end(self) -> bytes:
        """What is left when the stream has ended without its mark."""
        left = bytes(self._left)
        self.is_done = self.is_done or self._read(left)
        return b"" if self.is_done else left

    def _read(self, line: bytes) -> bool:
        """Whether the line ends the stream."""
        is_rest, self._is_skipping = self._is_skipping, False
        found = b"" if is_rest else data_of(line)
        if found == b"[DONE]":
            return True
        self._last = line
        if found:
            self._answers.add(read_event(found))
        return False


def data_of(line: bytes) -> bytes:
    """The data of a line of a stream; empty for other lines."""
    return line[5:].strip() if line.startswith(b"data:") else b""


def read_event(data: bytes) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_response(body: bytes) -> Any:
    """None if it is not JSON."""
    try:
        body.decode()
        return parse_json(body, finite=False, encodable=False)
    except (ValueError, RecursionError):
        return None


def add_objects(body: bytes, found: Mapping[int, Clew]) -> bytes:
    """A response with the clew object of each choice, and at the top if it is the only one. The
    rest stays as it is. A `clew` that the upstream has written is not replaced."""
    text = body.decode()
    start = _skip(text, 0)
    members = {name: place for name, *place in _members(text, start)}
    added = [
        (end, value, found[value.get("index", 0)])
        for value, end in (_items(text, members["choices"][0]) if "choices" in members else ())
        if value.get("index", 0) in found and "clew" not in value
    ]
    if len(found) == 1 and "clew" not in members:
        added.append((len(text.rstrip()), members, next(iter(found.values()))))
    for end, value, clew in sorted(added, key=lambda one: -one[0]):
        comma = "," if value else ""
        text = f'{text[: end - 1]}{comma}"clew":{compact_json(clew)}{text[end - 1 :]}'
    return text.encode()


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """The names of the members of an object, and where the value of each starts and ends."""
    at = _skip(text, at + 1)
    while text[at] == '"':
        name, at = scanstring(text, at + 1)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield name, start, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _items(text: str, at: int) -> Iterator[tuple[Any, int]]:
    """The items of a list, and where each ends."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        value, end = _DECODER.raw_decode(text, at)
        yield value, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def withhold(
    response: dict[str, Any], found: Mapping[int, Clew], replacement: str | None, *, is_chat: bool
) -> bytes:
    """A response of which something is withheld: of its other fields, only those of OpenAI's API
    remain, as the answer might be in them, too."""
    choices = []
    for choice in response["choices"]:
        clew = found[choice.get("index", 0)]
        if clew["withheld"]:
            clew = conceal(clew)
            told = None if replacement else refusal(clew)
            text = replacement or ""
            message = {"role": "assistant", "content": text, "refusal": told}
            choice = {
                "index": choice.get("index", 0),
                **({"message": message} if is_chat else {"text": text}),
                "logprobs": None,
                "finish_reason": "stop" if replacement else "content_filter",
            }
        choices.append({**choice, "clew": clew})
    kept = {name: response[name] for name in _KNOWN if name in response}
    above = {"clew": choices[0]["clew"]} if len(choices) == 1 else {}
    return compact_json({**kept, "choices": choices, **above}).encode()


def withhold_events(
    body: bytes, answers: PassedAnswers, found: Mapping[int, Clew], replacement: str | None
) -> bytes:
    """A whole stream, of which something may be withheld."""
    hidden = {place for place, clew in found.items() if clew["withheld"]}
    passed = bytearray()
    for line in body.split(b"\n"):
        data = data_of(line)
        if data and data != b"[DONE]":
            passed += _without(data, hidden)
    for place, clew in found.items():
        if place in hidden:
            passed += answers.withheld_chunks(place, clew, replacement)
        else:
            passed += answers.chunk(place, clew)
    return bytes(passed) + DONE


def _without(data: bytes, hidden: set[int]) -> bytes:
    chunk = read_event(data)
    choices = chunk.get("choices", []) if isinstance(chunk, dict) else []
    kept = [one for one in choices if one.get("index", 0) not in hidden]
    if len(kept) == len(choices):
        return b"data: " + data + b"\n\n"
    if not kept:
        return b""
    return event({**{name: chunk[name] for name in _KNOWN if name in chunk}, "choices": kept})
