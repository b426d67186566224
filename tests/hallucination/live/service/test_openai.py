"""The official client of OpenAI against a real server; its types are the reference."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import DIALOGUE, MODEL, QUESTION, Served, serving

pytestmark = pytest.mark.slow

CHAT = {"model": MODEL, "messages": DIALOGUE, "max_tokens": 8}
PROMPT = {"model": MODEL, "prompt": "The capital", "max_tokens": 8}
OBJECT = {
    *("risk", "verdict", "threshold", "state", "reason", "detector", "method", "distance"),
    *("risk_level", "token_probability_risk", "warning", "tokens", "withheld", "promise"),
}


def stop_of(served: Served) -> str:
    """A text in the middle of the greedy answer."""
    text = served.client().chat.completions.create(**CHAT).choices[0].message.content
    return str(text)[3:5]


def test_a_chat_has_the_shape_of_openai_and_a_risk(served: Served) -> None:
    stop = stop_of(served)
    status, content, headers = served.fetch("v1/chat/completions", {**CHAT, "stop": [stop]})
    assert status == 200 and headers["x-request-id"].startswith("req_")
    answer = ChatCompletion.model_validate(content, strict=True)
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content and stop not in choice.message.content
    assert answer.usage and answer.usage.completion_tokens == len(content["clew"]["tokens"])
    assert content["clew"] == content["choices"][0]["clew"]
    assert {*content["clew"]} == OBJECT
    assert content["clew"]["state"] in ("checked", "out_of_distribution")
    name = "risk" if content["clew"]["state"] == "checked" else "token_probability_risk"
    assert 0 <= content["clew"][name] <= 1
    assert "".join(one["token"] for one in content["clew"]["tokens"]) == choice.message.content


@pytest.mark.parametrize("options", [{}, {"stop": "e"}, {"n": 2, "temperature": 1.0, "seed": 5}])
def test_a_stream_says_what_the_whole_answer_says(served: Served, options: dict) -> None:
    client = served.client()
    whole = client.chat.completions.create(**CHAT, **options)
    texts, last = {}, {}
    for chunk in client.chat.completions.create(**CHAT, **options, stream=True):
        [choice] = ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True).choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.finish_reason:
            last[choice.index] = choice
        elif not choice.delta.role:
            assert {*choice.clew} == {"tokens"}, "no risk before the answer is complete"
            assert (chunk.model_extra or {}).get("clew") == (
                None if "n" in options else choice.clew
            )
    for one in whole.choices:
        assert texts[one.index] == one.message.content
        assert last[one.index].finish_reason == one.finish_reason
        assert last[one.index].clew["risk"] == pytest.approx(one.clew["risk"], abs=1e-3)
        assert len(last[one.index].clew["tokens"]) == len(one.clew["tokens"])


def test_usage_comes_at_the_end_of_a_stream_if_asked_for(served: Served) -> None:
    client = served.client()
    *chunks, last = client.chat.completions.create(
        **CHAT, stream=True, stream_options={"include_usage": True}
    )
    whole = client.chat.completions.create(**CHAT)
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_several_answers_differ_and_can_be_repeated(served: Served) -> None:
    def draw() -> list[str | None]:
        answer = served.client().chat.completions.create(**CHAT, n=3, temperature=1.2, seed=7)
        assert [one.index for one in answer.choices] == [0, 1, 2]
        assert "clew" not in (answer.model_extra or {}), "each choice has its own"
        return [one.message.content for one in answer.choices]

    assert draw() == draw()
    assert len({*draw()}) == 3


def test_log_probabilities_of_a_chat(served: Served) -> None:
    answer = served.client().chat.completions.create(**CHAT, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.content
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content
    for one in logprobs.content:
        best = [other.logprob for other in one.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True)
        assert one.logprob == best[0], "greedy"
    assert logprobs.clew["state"] == answer.clew["state"]


def test_completions_have_their_older_shape(served: Served) -> None:
    _, content, _ = served.fetch("v1/completions", {**PROMPT, "logprobs": 2})
    answer = Completion.model_validate(content, strict=True)
    [choice] = answer.choices
    found = choice.logprobs
    assert found and found.tokens and found.text_offset and found.top_logprobs
    assert "".join(found.tokens) == choice.text
    for start, token in zip(found.text_offset, found.tokens, strict=True):
        assert choice.text[start : start + len(token)] == token
    chunks = list(served.client().completions.create(**PROMPT, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_prompts_may_be_several_or_tokens(served: Served) -> None:
    ids = served.session.tokenizer.encode("The capital")
    client = served.client()
    several = client.completions.create(model=MODEL, prompt=["The capital", "In which"], n=2)
    alone = client.completions.create(model=MODEL, prompt=ids)
    assert [one.index for one in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == alone.choices[0].text
    assert alone.usage and alone.usage.completion_tokens == 16


def test_what_was_cut_off_has_no_risk(served: Served) -> None:
    answer = served.client().chat.completions.create(**{**CHAT, "max_tokens": 2})
    assert answer.choices[0].finish_reason == "length"
    assert answer.clew["state"] == "unavailable" and answer.clew["reason"]
    assert answer.clew["risk"] is None and answer.clew["verdict"] is None


def test_a_lone_question_is_asked_as_the_detector_was_trained(served: Served) -> None:
    question = str(QUESTION[0]["content"])
    expected = served.session.ask(question)
    answer = served.client().chat.completions.create(model=MODEL, messages=QUESTION)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage and answer.usage.prompt_tokens == len(
        served.session.encoder.encode(question)
    )


def test_a_context_is_put_in_the_prompt_of_a_lone_question(served: Served) -> None:
    body = {"messages": QUESTION, "context": "Paris is the capital.", "max_tokens": 1}
    status, content, _ = served.fetch("v1/chat/completions", body)
    expected = served.session.encoder.encode(str(QUESTION[0]["content"]), "Paris is the capital.")
    assert (status, content["usage"]["prompt_tokens"]) == (200, len(expected))
    status, content, _ = served.fetch("v1/chat/completions", {**body, "messages": DIALOGUE})
    assert (status, content["error"]["param"]) == (400, "context")


def test_messages_go_to_the_model_as_they_are_if_asked_for(session: Session) -> None:
    with serving(session, prompt="messages", max_tokens=12) as served, served.client() as client:
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert answer.usage
    assert answer.usage.prompt_tokens == len(session.encoder.encode_messages(QUESTION))
    assert answer.usage.completion_tokens > session.detector.generation["max_new_tokens"]


def test_conversations_are_scored_on_their_last_answer(served: Served) -> None:
    turns = [*DIALOGUE, {"role": "assistant", "content": "Paris."}, *QUESTION]
    stop = stop_of(served)
    answer = served.client().chat.completions.create(**{**CHAT, "messages": turns}, stop=stop)
    tokens = answer.clew["tokens"]
    assert "".join(one["token"] for one in tokens) == answer.choices[0].message.content


@pytest.mark.parametrize(
    ("kind", "fields", "param", "code"),
    [
        (openai.NotFoundError, {"model": "gpt-4o"}, "model", "model_not_found"),
        (openai.BadRequestError, {"temperature": 9}, "temperature", "invalid_value"),
        (openai.BadRequestError, {"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        (openai.BadRequestError, {"extra_body": {"guided": 1}}, "guided", "unknown_parameter"),
        (openai.BadRequestError, {"n": 17}, "n", "invalid_value"),
        (
            openai.UnprocessableEntityError,
            {"max_tokens": 201},
            "max_tokens",
            "limit_exceeded",
        ),
        (
            openai.BadRequestError,
            {"messages": [{"role": "user", "content": "word " * 2000}]},
            "messages",
            "context_length_exceeded",
        ),
    ],
)
def test_errors_are_those_of_openai(
    served: Served, kind: type[openai.APIStatusError], fields: dict, param: str, code: str
) -> None:
    client = served.client()
    with pytest.raises(kind) as error:
        client.chat.completions.create(**{**CHAT, **fields})
    assert (error.value.param, error.value.code) == (param, code)


def test_the_model_is_listed(served: Served) -> None:
    client = served.client()
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "clew"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_async_clients_are_answered_together(served: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, place: int) -> str:
        messages: Any = [{"role": "user", "content": f"{place} {QUESTION[0]['content']}"}]
        text = ""
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=6, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def ask_all() -> list[str]:
        options = {"base_url": f"{served.address}v1", "api_key": "none", "max_retries": 0}
        async with openai.AsyncOpenAI(**options) as client:
            return await asyncio.gather(*(ask(client, place) for place in range(12)))

    found = asyncio.run(ask_all())
    alone = served.client().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"11 {QUESTION[0]['content']}"}],
        max_tokens=6,
    )
    assert found[11] == alone.choices[0].message.content
