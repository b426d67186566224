"""The fields of a request: honored, accepted because they change nothing, or refused by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from clew.base.texts import shortened
from clew.base.typed_json import Bounds, read_as
from clew.hallucination.live.service.errors import unsupported
from clew.pages.api import ApiError, invalid

MAX_STOPS = 16
# Every token of an answer is compared with them.
MAX_STOP_LENGTH = 256
MAX_TOP_LOGPROBS = 20
MAX_OLD_LOGPROBS = 5

_Penalty = Annotated[float, Bounds(least=-2, most=2)]
_Text = Annotated[str, Bounds(least=1)]
_Stop = Annotated[str, Bounds(least=1, most=MAX_STOP_LENGTH)]


@dataclass(frozen=True)
class Wanted:
    """A field that is honored: its type, and the type in words. Null is the default."""

    kind: Any
    words: str
    default: Any = None


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What a request may contain. `honored` fields are read. `harmless` ones change nothing here,
    whatever they are. `refused` ones are accepted only with one of the listed values, which ask
    for nothing; null always is."""

    honored: Mapping[str, Wanted]
    harmless: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def read(self, body: Any, inside: str = "") -> dict[str, Any]:
        """The honored fields, with defaults; `inside` is the path to them for errors. Raises
        ApiError, which names the field."""
        if not isinstance(body, dict):
            where = inside.removesuffix(".") or None
            text = f"{where or 'The body'} must be a JSON object."
            raise ApiError(400, text, param=where, code="invalid_type")
        for name, value in body.items():
            if name not in self.honored and name not in self.harmless:
                self._refuse(f"{inside}{name}", name, value)
        return {
            name: read_field(wanted, body.get(name), f"{inside}{name}")
            for name, wanted in self.honored.items()
        }

    def _refuse(self, path: str, name: str, value: Any) -> None:
        if name not in self.refused:
            shown = shortened(path)[1:-1]
            raise invalid(shown, f"Unknown parameter: '{shown}'.", "unknown_parameter")
        if value is not None and not any(_same(value, one) for one in self.refused[name]):
            accepted = ", ".join(map(json.dumps, self.refused[name]))
            only = f" except {accepted}" if accepted else ""
            raise unsupported(path, f"'{path}' is not supported{only}: omit it.")


def read_field(wanted: Wanted, value: Any, path: str) -> Any:
    """A value of the wanted type, or its default. Raises ApiError."""
    if value is None:
        return wanted.default
    try:
        return read_as(wanted.kind, value, path)
    except ValueError as error:
        raise invalid(path, f"{error}: give {wanted.words}.") from None


def _same(value: Any, accepted: Any) -> bool:
    return type(value) is type(accepted) and bool(value == accepted)


_SHARED = {
    "model": Wanted(str, "the name of the model"),
    "n": Wanted(Annotated[int, Bounds(least=1)], "1 or more", 1),
    "temperature": Wanted(Annotated[float, Bounds(least=0, most=2)], "a number from 0 to 2"),
    "top_p": Wanted(Annotated[float, Bounds(least=0, most=1)], "a number from 0 to 1", 1.0),
    "top_k": Wanted(Annotated[int, Bounds(least=0)], "1 or more"),
    "frequency_penalty": Wanted(_Penalty, "a number from -2 to 2", 0.0),
    "presence_penalty": Wanted(_Penalty, "a number from -2 to 2", 0.0),
    "seed": Wanted(int, "an integer of 64 bits"),
    "stop": Wanted(
        _Stop | Annotated[list[_Stop], Bounds(most=MAX_STOPS)],
        f"a text, or a list of up to {MAX_STOPS} texts, of up to {MAX_STOP_LENGTH} characters each",
        [],
    ),
    "max_tokens": Wanted(Annotated[int, Bounds(least=1)], "1 or more"),
    "stream": Wanted(bool, "true or false", False),
    "stream_options": Wanted(dict[str, Any], "an object"),
}
_STREAM_OPTIONS = Fields(
    honored={"include_usage": Wanted(bool, "true or false", False)},
    harmless=frozenset({"include_obfuscation"}),
)
_MESSAGES = Annotated[list[Any], Bounds(least=1)]

CHAT = Fields(
    honored={
        **_SHARED,
        "messages": Wanted(_MESSAGES, "a list of messages"),
        "context": Wanted(_Text, "a text to answer from"),
        "max_completion_tokens": Wanted(Annotated[int, Bounds(least=1)], "1 or more"),
        "logprobs": Wanted(bool, "true or false", False),
        "top_logprobs": Wanted(
            Annotated[int, Bounds(least=0, most=MAX_TOP_LOGPROBS)], f"0 to {MAX_TOP_LOGPROBS}"
        ),
    },
    harmless=frozenset(
        {
            *("user", "metadata", "safety_identifier", "parallel_tool_calls"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        }
    ),
    refused={
        "store": (False,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "logit_bias": ({},),
        "audio": (),
        "moderation": (),
        "prediction": (),
        "web_search_options": (),
    },
)

_Tokens = Annotated[list[Annotated[int, Bounds(least=0)]], Bounds(least=1)]
COMPLETION = Fields(
    honored={
        **_SHARED,
        "prompt": Wanted(
            _Text | _Tokens | Annotated[list[_Text | _Tokens], Bounds(least=1)],
            "a text, a list of token ids, or a list of either",
        ),
        "logprobs": Wanted(
            Annotated[int, Bounds(least=0, most=MAX_OLD_LOGPROBS)], f"0 to {MAX_OLD_LOGPROBS}"
        ),
    },
    harmless=frozenset({"user"}),
    refused={
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "logit_bias": ({},),
    },
)


def read_stream_options(given: dict[str, Any] | None, *, is_stream: bool) -> bool:
    """Whether a stream ends with a chunk that counts the tokens."""
    if given is None:
        return False
    if not is_stream:
        raise invalid("stream_options", "'stream_options' requires 'stream': true.")
    return bool(_STREAM_OPTIONS.read(given, "stream_options.")["include_usage"])
