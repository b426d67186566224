"""Calls of tools in what a model writes, read by transformers' own parser: by the response template
of the model's tokenizer, or by the format that its chat template shows (`tool_formats.json`)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from secrets import token_hex
from typing import Any

from clew.base.errors import InputError
from clew.base.typed_json import compact_json
from clew.hallucination.llm.prompts import format_chat
from clew.hallucination.llm.requests import Token

CALLS = "the answer calls tools: a call is not an answer, and is not checked"
_FORMATS = json.loads(files(__package__).joinpath("tool_formats.json").read_text("utf-8"))
_PROBE = {"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}}
_QUESTION = [{"role": "user", "content": "probe"}]
_REASONING = ("reasoning_content", "thinking")
# What the parser raises for a call that is not as the format says.
_PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What an answer, or a part of it, says: a text, the reasoning before it, calls in OpenAI's
    shape."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[dict[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def __add__(self, other: "Said") -> "Said":
        return Said(
            content=self.content + other.content,
            reasoning=self.reasoning + other.reasoning,
            calls=self.calls + other.calls,
        )


class ToolFormat:
    """How a model writes calls of tools. Raises InputError if it knows no tools."""

    def __init__(self, tokenizer: Any) -> None:
        try:
            from transformers.utils.chat_parsing import ResponseParser
        except ImportError:
            raise InputError(
                "tools need a newer version of transformers: pip install -U transformers."
            ) from None
        self._tokenizer, self._make = tokenizer, ResponseParser
        self._special = {*getattr(tokenizer, "all_special_ids", ())}
        if not getattr(tokenizer, "chat_template", None) or not self._shows_tools():
            raise InputError(
                "this model's chat template knows no tools: omit them, or serve a model that was "
                "trained to call tools."
            )
        self._own = getattr(tokenizer, "response_template", None)
        self._template = self._own or self._find()

    def _shows_tools(self) -> bool:
        """Some templates show tools only in the first message of the user."""
        without, shown = (
            format_chat(self._tokenizer, _QUESTION, tools=tools) for tools in (None, [_PROBE])
        )
        return without != shown

    def _find(self) -> dict[str, Any]:
        shown = str(self._tokenizer.get_chat_template(None, tools=[_PROBE]))
        for given in _FORMATS:
            if all(mark in shown for mark in given["marks"]):
                calls = {name: value for name, value in given.items() if name != "marks"}
                # What the prompt holds of the answer is nothing that these formats look for.
                fields = {"tool_calls": calls, "content": {"content": "text"}}
                return {"start_anchor": "\0", "fields": fields}
        raise InputError(
            "clew does not know how this model writes calls of tools: add a response_template "
            "to its tokenizer_config.json, as transformers describes it, or omit the tools."
        )

    def reader(
        self, prompt: Sequence[int], tools: Sequence[Any], *, parallel: bool = True
    ) -> "CallReader":
        """For one answer to a prompt. Unless `parallel`, calls after the first are dropped."""
        before = str(self._tokenizer.decode(list(prompt))) if self._own else ""
        parser = self._make(self._template, prefix=before, tools=list(tools))
        return CallReader(self, parser, parallel=parallel)

    def text_of(self, token: Token) -> str:
        """A token's text; special tokens, which answers do not show, may mark a call."""
        if token.id in self._special:
            return str(self._tokenizer.convert_ids_to_tokens(token.id))
        return token.text


class CallReader:
    """Tells the calls in an answer from its text while it is generated. What looks like a call but
    cannot be read is text. `said` is everything so far."""

    def __init__(self, own: ToolFormat, parser: Any, *, parallel: bool) -> None:
        self._own, self._parser, self._parallel = own, parser, parallel
        self._held = ""  # of what has been fed, the part that nobody has got
        self._tokens: list[Token] = []
        self.said = Said()

    def feed(self, token: Token) -> Said:
        """What this token completes."""
        self._tokens.append(token)
        return self._add(self._read(self._own.text_of(token)))

    def finish(self) -> Said:
        """What is left at the end of the answer."""
        return self._add(self._read(None))

    def take_tokens(self) -> list[Token]:
        """Those since the last time. Tokens of a call have no risk."""
        taken, self._tokens = self._tokens, []
        return [replace(one, risk=None) for one in taken] if self.said.calls else taken

    def _add(self, found: Said) -> Said:
        if not self._parallel:
            found = replace(
                found, calls=(*self.said.calls, *found.calls)[:1][len(self.said.calls) :]
            )
        self.said += found
        return found

    def _read(self, text: str | None) -> Said:
        if self._parser is None:
            return Said(content=text or "")
        self._held += text or ""
        found = Said()
        try:
            events = self._parser.finalize()[1] if text is None else self._parser.feed(text)
            for said in self._take(events):
                found += said
        except _PARSE_ERRORS:
            self._parser = None
            found += Said(content=self._held)
        return found

    def _take(self, events: Sequence[Mapping[str, Any]]) -> Iterator[Said]:
        for event in events:
            kind, name = event["type"], event["field"]
            if kind == "region_chunk" and name != "tool_calls":
                self._held = self._held.partition(event["text"])[2]
                is_reasoning = name in _REASONING
                yield Said(**{"reasoning" if is_reasoning else "content": event["text"]})
            elif kind == "region_close" and name == "tool_calls":
                functions = [one["function"] for one in _as_list(event["value"])]
                yield Said(calls=tuple(_read_call(f) for some in functions for f in _as_list(some)))
                self._held = ""


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read_call(function: Mapping[str, Any]) -> dict[str, Any]:
    """Raises what the parser does if it is none."""
    name, arguments = function["name"], function.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        raise ValueError("not a call")
    text = arguments if isinstance(arguments, str) else compact_json(arguments)
    called = {"name": name, "arguments": text}
    return {"id": f"call_{token_hex(12)}", "type": "function", "function": called}
