"""Requests in the shape of OpenAI's API. Every field is honored, accepted because it changes
nothing, or refused by name: `fields.json` lists the latter two."""

import json
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clew.base.errors import InputError
from clew.base.texts import shortened
from clew.hallucination.llm.prompts import PromptTooLongError
from clew.hallucination.llm.requests import Sampling
from clew.pages.api import ApiError, invalid
from clew.storage.reading import parse_json

# `harmless` fields change nothing, whatever they are. `refused` ones are accepted only with one of
# the listed values, which ask for nothing.
OTHER_FIELDS = json.loads(files(__package__).joinpath("fields.json").read_text("utf-8"))
_MAX_STOPS = 16
# Every token of an answer is compared with them.
_MAX_STOP_LENGTH = 256
_LONGEST_CORRECTION = 20_000
_MAX_TOP_LOGPROBS, _MAX_OLD_LOGPROBS = 20, 5
_MAX_TOOLS = 128
# OpenAI's default for completions; a chat goes on until the model ends it.
_COMPLETION_TOKENS = 16
# OpenAI's newer name for a system message; chat templates know only the older one.
_ROLES = {"developer": "system", **{r: r for r in ("system", "user", "assistant", "tool")}}
_ROLE_WORDS = "system, developer, user, assistant or tool"
_NO_FORCED_CALL = (
    "'tool_choice': only none and auto are supported: the model decides whether it calls a tool."
)
_SOURCE = "source"
# Where LiteLLM looks for a guardrail, below the address that it is given.
GUARDRAIL_PATH = "/beta/litellm_basic_guardrail_api"

Messages = list[dict[str, Any]]
_Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Count = Annotated[_Int, Field(ge=1)]
_Text = Annotated[str, Field(min_length=1)]
_Stop = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]
_Tokens = Annotated[list[Annotated[_Int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]
_Prompts = Annotated[list[_Text | _Tokens], Field(min_length=1, fail_fast=True)]
_Passages = str | Annotated[list[str], Field(fail_fast=True)]
_Stops = Annotated[list[_Stop], Field(max_length=_MAX_STOPS, fail_fast=True)]
_EACH = f"of up to {_MAX_STOP_LENGTH} characters each"


def _field(words: str, default: Any = None, **bounds: Any) -> Any:
    """A field that is honored; `words` are what to give, for errors."""
    return Field(default, description=words, **bounds)


class _Fields(BaseModel):
    """Fields that are honored; null is the default. `group` is that in `OTHER_FIELDS`."""

    model_config = ConfigDict(strict=True, frozen=True)
    group: ClassVar[str]

    @classmethod
    def read(cls, body: Any, inside: str = "") -> Self:
        """The honored fields; `inside` is the path to them for errors. Raises ApiError, which names
        the field that cannot be used."""
        if not isinstance(body, dict):
            where = inside.removesuffix(".") or None
            text = f"{where or 'The body'} must be a JSON object."
            raise ApiError(400, text, param=where, code="invalid_type")
        given, body = body, _as_context(body, inside) if "context" in cls.model_fields else body
        for name, value in body.items():
            if name not in cls.model_fields:
                _refuse(OTHER_FIELDS[cls.group], f"{inside}{name}", name, value)
        try:
            return cls(**{name: value for name, value in body.items() if _is_own(cls, name, value)})
        except ValidationError as error:
            # Of a union, the part that comes furthest is what was meant.
            wrong = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
            name, *places = wrong["loc"]
            words = cls.model_fields[str(name)].description
            name = name if name in given else _SOURCE
            path = f"{inside}{name}" + "".join(f"[{n}]" for n in places if isinstance(n, int))
            text = f"{path} is {shortened(wrong['input'])}: give {words}."
            raise invalid(f"{inside}{name}", text) from None


def _as_context(body: dict[str, Any], inside: str) -> dict[str, Any]:
    """The field "source" under its other name."""
    if _SOURCE not in body:
        return body
    if "context" in body:
        text = f"'{inside}{_SOURCE}' and '{inside}context' are the same: give one of them."
        raise invalid(f"{inside}{_SOURCE}", text)
    return {"context" if name == _SOURCE else name: value for name, value in body.items()}


def _is_own(model: type[BaseModel], name: str, value: Any) -> bool:
    return name in model.model_fields and value is not None


def _refuse(others: dict[str, Any], path: str, name: str, value: Any) -> None:
    if name in others.get("harmless", ()):
        return
    if name not in others.get("refused", ()):
        shown = shortened(path)[1:-1]
        raise invalid(shown, f"Unknown parameter: '{shown}'.", "unknown_parameter")
    accepted = others["refused"][name]
    if value is not None and not any(type(value) is type(a) and value == a for a in accepted):
        only = f" except {', '.join(map(json.dumps, accepted))}" if accepted else ""
        raise unsupported(path, f"'{path}' is not supported{only}: omit it.")


class _StreamOptions(_Fields):
    group = "stream_options"
    include_usage: bool = _field("true or false", False)


class _Request(_Fields):
    """What chats and completions share."""

    model: str | None = _field("the name of the model")
    n: _Count = _field("1 or more", 1)
    temperature: float = _field("a number from 0 to 2", 0.0, ge=0, le=2)
    top_p: float = _field("a number from 0 to 1", 1.0, ge=0, le=1)
    top_k: _Int | None = _field("1 or more", ge=0)
    frequency_penalty: float = _field("a number from -2 to 2", 0.0, ge=-2, le=2)
    presence_penalty: float = _field("a number from -2 to 2", 0.0, ge=-2, le=2)
    seed: _Int | None = _field("an integer of 64 bits")
    stop: _Stop | _Stops = _field(f"a text, or a list of up to {_MAX_STOPS} texts, {_EACH}", [])
    max_tokens: _Count | None = _field("1 or more")
    stream: bool = _field("true or false", False)
    stream_options: dict[str, Any] | None = _field("an object")

    def model_post_init(self, _: Any) -> None:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "'stream_options' requires 'stream': true.")
        _StreamOptions.read(self.stream_options or {}, "stream_options.")

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts the tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self, choice: int = 0) -> Sampling:
        """Several answers with one seed are different, and each can be had again."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k or None,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=None if self.seed is None else self.seed + choice,
        )


class ChatRequest(_Request):
    """A request to continue a conversation. `context` is the text to answer a question from, which
    is clew's own field."""

    group = "chat"
    is_chat: ClassVar[bool] = True
    prompt_name: ClassVar[str] = "messages"  # the field that holds the prompt, for errors

    messages: list[Any] | None = _field("a list of messages", min_length=1)
    context: _Text | None = _field("a text to answer from")
    max_completion_tokens: _Count | None = _field("1 or more")
    logprobs: bool = _field("true or false", False)
    top_logprobs: _Int | None = _field(f"0 to {_MAX_TOP_LOGPROBS}", ge=0, le=_MAX_TOP_LOGPROBS)
    tools: list[Any] = _field(f"a list of up to {_MAX_TOOLS} tools", [], max_length=_MAX_TOOLS)
    tool_choice: str | dict[str, Any] = _field("none or auto", "auto")
    parallel_tool_calls: bool = _field("true or false", True)
    response_format: dict[str, Any] = _field("an object with a type", {"type": "text"})

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.messages is None:
            raise missing("messages")
        if self.tool_choice not in ("none", "auto"):
            raise unsupported("tool_choice", _NO_FORCED_CALL)
        if self.offered_tools and self.answer_schema is not None:
            text = "'response_format' would keep the model from calling tools: give one of them."
            raise invalid("response_format", text)
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "'top_logprobs' requires 'logprobs': true.")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise invalid("max_tokens", "Give 'max_completion_tokens' or 'max_tokens', not both.")
        _ = self.conversation

    @cached_property
    def conversation(self) -> Messages:
        return read_messages(self.messages or [])

    @cached_property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call, as chat templates take them."""
        tools = [_read_tool(one, f"tools[{place}]") for place, one in enumerate(self.tools)]
        return [] if self.tool_choice == "none" else tools

    @cached_property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must have; None if it may be any text."""
        return _read_format(self.response_format)

    @property
    def question(self) -> str | None:
        """The question, if the request is for an answer to it and nothing else."""
        is_plain = not self.offered_tools and self.answer_schema is None
        return only_question(self.conversation) if is_plain else None

    @property
    def answers(self) -> int:
        """How many answers the request gets."""
        return self.n

    @property
    def limit(self) -> int | None:
        """The tokens that an answer may have, None if the request does not say."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_name(self) -> str:
        return "max_completion_tokens" if self.max_tokens is None else "max_tokens"

    @property
    def alternatives(self) -> int | None:
        """How many likely tokens come beside each; None: no log probabilities at all."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(_Request):
    """A request to continue texts, given as texts or token ids."""

    group = "completion"
    is_chat: ClassVar[bool] = False
    prompt_name: ClassVar[str] = "prompt"
    limit_name: ClassVar[str] = "max_tokens"

    prompt: _Text | _Tokens | _Prompts | None = _field(
        "a text, a list of token ids, or a list of either"
    )
    logprobs: _Int | None = _field(f"0 to {_MAX_OLD_LOGPROBS}", ge=0, le=_MAX_OLD_LOGPROBS)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.prompt is None:
            raise missing("prompt")

    @property
    def prompts(self) -> list[Any]:
        is_many = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return list(self.prompt or ()) if is_many else [self.prompt]

    @property
    def answers(self) -> int:
        return self.n * len(self.prompts)

    @property
    def limit(self) -> int:
        return self.max_tokens or _COMPLETION_TOKENS

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


Asked = ChatRequest | CompletionRequest


class CheckItem(_Fields):
    """An answer that exists. `context`, which may be called "source", is what it is from."""

    group = "item"
    question: str | None = _field("a text")
    context: _Passages | None = _field("a text, or a list of texts")
    answer: str | None = _field("a text")

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.context,) if isinstance(self.context, str) else tuple(self.context or ())


class ScoreItem(CheckItem):
    """An answer to score. With `check`, it is also read beside its sources."""

    messages: list[Any] | None = _field("a list of messages")
    check: bool = _field("true or false", False)


class FeedbackRequest(_Fields):
    """What a person says about an answer."""

    group = "feedback"
    id: str | None = _field("the ID of a response, of up to 200 characters", max_length=200)
    index: Annotated[_Int, Field(ge=0)] | None = _field("the index of a choice, 0 or more")
    label: Literal["correct", "hallucinated"] | None = _field("correct or hallucinated")
    corrected_answer: str | None = _field(
        f"a text of 1 to {_LONGEST_CORRECTION:,} characters",
        min_length=1,
        max_length=_LONGEST_CORRECTION,
    )

    def model_post_init(self, _: Any) -> None:
        for name in ("id", "label"):
            if getattr(self, name) is None:
                raise missing(name)
        if self.corrected_answer is not None and self.label == "correct":
            text = "'corrected_answer' is for an answer with the label hallucinated: omit it."
            raise invalid("corrected_answer", text)


class _Message(_Fields):
    group = "message"
    role: str | None = _field(_ROLE_WORDS)
    content: str | list[Any] | None = _field("a text, or a list of parts of type text")
    tool_calls: list[Any] = _field("a list of calls", [])
    tool_call_id: str | None = _field("the ID of the call")
    name: str | None = _field("the name of the tool")


class _Tool(_Fields):
    group = "tool"
    type: str | None = _field("function")
    function: dict[str, Any] | None = _field("an object with name, description and parameters")


class _ToolFunction(_Fields):
    group = "function"
    name: _Text | None = _field("a text")
    description: str | None = _field("a text")
    parameters: dict[str, Any] | None = _field("a JSON schema")


class _Call(_Fields):
    group = "call"
    id: str | None = _field("a text")
    type: str | None = _field("function")
    function: dict[str, Any] | None = _field("an object with name and arguments")


class _Called(_Fields):
    group = "called"
    name: _Text | None = _field("a text")
    arguments: str | None = _field("a text that is a JSON object")


class _Part(_Fields):
    group = "part"
    type: str | None = _field("text")
    text: str | None = _field("a text")


def read_messages(given: list[Any], path: str = "messages") -> Messages:
    """Role and text of every message, calls of tools and their results included, as the model's
    chat template takes them. Raises ApiError, which names the part that cannot be used."""
    return [_read_message(one, f"{path}[{place}]") for place, one in enumerate(given)]


def _read_message(given: Any, path: str) -> dict[str, Any]:
    found = _Message.read(given, f"{path}.")
    if found.role not in _ROLES:
        raise invalid(f"{path}.role", f"{path}.role: give {_ROLE_WORDS}.")
    owners = {"tool_calls": "assistant", "tool_call_id": "tool", "name": "tool"}
    about = {name: value for name in owners if (value := getattr(found, name))}
    for name in about:
        if found.role != owners[name]:
            text = f"'{path}.{name}' is only supported with the role {owners[name]}: omit it."
            raise unsupported(f"{path}.{name}", text)
    if found.tool_calls:
        calls = enumerate(found.tool_calls)
        about["tool_calls"] = [_read_call(one, f"{path}.tool_calls[{n}]") for n, one in calls]
    content = found.content
    if content is None and not found.tool_calls:
        raise invalid(f"{path}.content", f"{path}.content: give a text.")
    if isinstance(content, list):
        parts = enumerate(content)
        content = "".join(_read_part(part, f"{path}.content[{place}]") for place, part in parts)
    return {"role": _ROLES[found.role], "content": content or "", **about}


def _read_call(given: Any, path: str) -> dict[str, Any]:
    """A call that the model made, with its arguments as chat templates take them."""
    call = _Call.read(given, f"{path}.")
    called = _Called.read(call.function, f"{path}.function.")
    try:
        arguments = parse_json((called.arguments or "{}").encode())
    except (ValueError, RecursionError):
        arguments = None
    if called.name is None or not isinstance(arguments, dict):
        text = f"'{path}.function': give a name, and arguments that are a JSON object."
        raise invalid(f"{path}.function", text)
    function = {"name": called.name, "arguments": arguments}
    return {"id": call.id or "", "type": "function", "function": function}


def _read_tool(given: Any, path: str) -> dict[str, Any]:
    tool = _Tool.read(given, f"{path}.")
    if tool.type != "function":
        text = f"'{path}.type': only tools of type function are supported."
        raise unsupported(f"{path}.type", text)
    function = _ToolFunction.read(tool.function, f"{path}.function.")
    if function.name is None:
        raise missing(f"{path}.function.name")
    about = function.model_dump(exclude_none=True)
    # Chat templates expect all three.
    about = {"description": "", "parameters": {"type": "object", "properties": {}}, **about}
    return {"type": "function", "function": about}


def _read_format(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of a `response_format`."""
    kind, inner = given.get("type"), given.get("json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        text = "'response_format.type': give text, json_object or json_schema."
        raise invalid("response_format", text)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        text = "'response_format.json_schema.schema': give a JSON schema, an object."
        raise invalid("response_format", text)
    return schema


def _read_part(given: Any, path: str) -> str:
    found = _Part.read(given, f"{path}.")
    if found.type != "text":
        raise unsupported(f"{path}.type", f"'{path}.type': only parts of type text are supported.")
    if found.text is None:
        raise invalid(f"{path}.text", f"{path}.text: give a text.")
    return found.text


def only_question(messages: Messages) -> str | None:
    """The question, if the conversation is nothing else: one message of the user."""
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    return None


def last_question(messages: Messages) -> str:
    """What the user said last; "" if there is no such message."""
    return next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")


def missing(name: str) -> ApiError:
    return invalid(name, f"Missing required parameter: '{name}'.", "missing_parameter")


def unsupported(param: str, message: str) -> ApiError:
    """A field that OpenAI's API has, and this one does not."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def too_long(param: str, message: str) -> ApiError:
    """A prompt with more tokens than the model or the server takes. Status and code are OpenAI's:
    clients catch them and shorten the prompt."""
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unusable(param: str, error: InputError) -> ApiError:
    """A prompt that the model cannot read."""
    text = str(error)
    make = too_long if isinstance(error, PromptTooLongError) else invalid
    return make(param, f"{text[:1].upper()}{text[1:]}")


def out_of_time(seconds: float) -> ApiError:
    """Asking again would take as long: OpenAI's clients do not retry."""
    return ApiError(
        503,
        f"The answer was not finished within {seconds:g} s. Ask for fewer tokens.",
        code="timeout",
        headers={"x-should-retry": "false"},
    )
