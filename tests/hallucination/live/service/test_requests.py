"""Every field of OpenAI's requests: honored, accepted because it changes nothing, or refused by
name."""

from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat

from clew.hallucination.live.service.requests import OTHER_FIELDS, ChatRequest, CompletionRequest
from clew.hallucination.llm.requests import Sampling
from clew.pages.api import ApiError

USER = {"role": "user", "content": "In which country is Tartu?"}


def ask(**fields: Any) -> ChatRequest:
    return ChatRequest.read({"messages": [USER], **fields})


def refusal(body: Any, read: Any = ChatRequest.read) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        read(body)
    assert caught.value.status == 400
    return caught.value.body()["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "params"),
    [
        (ChatRequest, chat.CompletionCreateParamsStreaming),
        (CompletionRequest, completion.CompletionCreateParamsStreaming),
    ],
)
def test_every_field_of_openai_is_known(model: Any, params: Any) -> None:
    others = OTHER_FIELDS[model.group]
    known = {*model.model_fields, *others["harmless"], *others["refused"]}
    assert {*get_type_hints(params)} <= known


def test_sampling_is_read_as_it_is_given() -> None:
    given = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "frequency_penalty": 1, "top_k": 5}
    asked = ask(**given, stop="\n", max_completion_tokens=7, n=2, logprobs=True, top_logprobs=4)
    assert asked.sampling() == Sampling(**given)
    assert (asked.stops, asked.limit, asked.n, asked.alternatives) == (("\n",), 7, 2, 4)
    assert [asked.sampling(choice).seed for choice in (0, 1)] == [3, 4]


def test_penalties_hold_without_sampling_too() -> None:
    sampling = ask(presence_penalty=1.0, temperature=0).sampling()
    assert (sampling.presence_penalty, sampling.temperature) == (1.0, 0.0)


def test_fields_that_change_nothing_are_accepted() -> None:
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    empty = {"tools": [], "logit_bias": {}, "response_format": {"type": "text"}, "audio": None}
    empty |= {"tool_choice": "auto", "parallel_tool_calls": True}
    null = dict.fromkeys(("temperature", "stop", "n", "stream", "stream_options", "seed"))
    assert ask(**harmless, **empty, **null) == ask()


@pytest.mark.parametrize(
    "name", [*OTHER_FIELDS["chat"]["refused"], *OTHER_FIELDS["completion"]["refused"]]
)
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    read, body = (ChatRequest.read, {"messages": [USER]})
    if name in OTHER_FIELDS["completion"]["refused"]:
        read, body = (CompletionRequest.read, {"prompt": "a"})
    error = refusal({**body, name: "something"}, read)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", 3, "temperature is 3: give a number from 0 to 2."),
        ("temperature", "hot", "temperature is 'hot'"),
        ("n", 0, "n is 0: give 1 or more."),
        ("n", True, "n is true"),
        ("stop", ["a", ""], "stop[1] is ''"),
        ("stop", ["a"] * 17, "up to 16 texts"),
        ("stop", "a" * 257, "up to 256 characters"),
        ("max_tokens", 0, "max_tokens is 0"),
        ("top_logprobs", 21, "give 0 to 20"),
        ("seed", 1.5, "seed is 1.5"),
        ("stream", "yes", "true or false"),
        ("messages", [], "a list of messages"),
        ("messages", None, "Missing required parameter: 'messages'"),
        ("no_such_field", 1, "Unknown parameter: 'no_such_field'."),
    ],
)
def test_wrong_values_are_refused_with_the_value(field: str, value: Any, words: str) -> None:
    error = refusal({"messages": [USER], field: value})
    assert error["param"] == field
    assert words.lower() in error["message"].lower()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"max_tokens": 2, "max_completion_tokens": 2}, "max_tokens"),
    ],
)
def test_fields_that_need_another_are_refused_alone(fields: dict[str, Any], param: str) -> None:
    assert refusal({"messages": [USER], **fields})["param"] == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "4", "tool_call_id": "a"}, "tool_call_id"),
        ({"role": "function", "content": "4"}, "role"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}, "tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}, "t"),
        ({"role": "user", "content": "a", "tool_calls": [{"id": "a"}]}, "tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "content[0].type"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": "a", "name": "Ada"}, "name"),
        ({"role": "robot", "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ("hello", ""),
    ],
)
def test_messages_that_no_detector_can_check_are_refused(message: Any, param: str) -> None:
    error = refusal({"messages": [USER, message]})
    assert error["param"].startswith(f"messages[1]{'.' if param else ''}{param}")


def test_messages_of_several_parts_and_turns_are_read() -> None:
    parts = {"role": "developer", "content": [{"type": "text", "text": text} for text in "ab"]}
    answer = {"role": "assistant", "content": "no", "refusal": None, "tool_calls": None}
    assert ask(messages=[parts, USER, answer, USER]).conversation == [
        *({"role": "system", "content": "ab"}, USER),
        *({"role": "assistant", "content": "no"}, USER),
    ]


def test_calls_and_their_results_are_read_as_chat_templates_take_them() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    result = {"role": "tool", "content": "4", "tool_call_id": "a"}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    [_, called, read] = ask(messages=[USER, assistant, result]).conversation
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert called["content"] == "" and read == result


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_of_completions_are_texts_or_tokens(prompt: Any, prompts: list) -> None:
    asked = CompletionRequest.read({"prompt": prompt})
    assert asked.prompts == prompts
    assert asked.limit == 16, "OpenAI's default"


@pytest.mark.parametrize("prompt", ["", [], [""], [-1], [[]], [1, "a"], None, 5])
def test_completions_without_a_prompt_are_refused(prompt: Any) -> None:
    assert refusal({"prompt": prompt}, CompletionRequest.read)["param"] == "prompt"


def test_a_list_of_a_million_wrong_values_is_one_error() -> None:
    error = refusal({"prompt": [-1] * 10**6}, CompletionRequest.read)
    assert error["param"] == "prompt" and len(error["message"]) < 300
