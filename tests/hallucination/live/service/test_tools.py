"""Tools: a tiny model that was taught to call one, a real server, and the clients people use."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from clew.base.errors import InputError
from clew.hallucination.capture import LoadedModel
from clew.hallucination.live.service.tools import Said, ToolFormat
from clew.hallucination.live.session import Session
from clew.hallucination.llm.requests import Token
from tests.builders import tiny_loaded, tiny_tokenizer
from tests.hallucination.live.service.conftest import keep_probe
from tests.hallucination.live.service.serving import MODEL, Served, serving

TEMPLATE = (
    "{% if tools %}{{ tools[0].function.name }} {% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASKED = [{"role": "user", "content": "Is it sunny in Lyon?"}]
CALLED = {"name": "weather", "arguments": {"city": "Lyon"}}
ANSWER = f" Let me see.<tool_call>\n{json.dumps(CALLED)}\n</tool_call>"
CALL = {"id": "a", "type": "function", "function": {**CALLED, "arguments": '{"city": "Lyon"}'}}
RESULT = [
    *(*ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}),
    {"role": "tool", "tool_call_id": "a", "content": "21 degrees"},
]


def teach(loaded: LoadedModel, pairs: list[tuple[str, str]]) -> None:
    """Fit a tiny model to answers until it gives them."""
    tokenizer, optimizer = loaded.tokenizer, torch.optim.Adam(loaded.model.parameters(), lr=5e-3)
    rows = [(tokenizer.encode(asked), [*tokenizer.encode(said), 0]) for asked, said in pairs]
    for _ in range(400):
        total = torch.zeros(())
        for asked, said in rows:
            logits = loaded.model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(said))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if total.item() < 0.03:
            return
    raise AssertionError("it does not learn")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, questions_file: Path) -> Iterator[Session]:
    loaded = tiny_loaded(context=1024)
    loaded.tokenizer.chat_template = TEMPLATE
    encode = loaded.tokenizer.apply_chat_template
    filled = {"add_generation_prompt": True, "tokenize": False, "tools": [WEATHER]}
    used = {**RESULT[1], "content": "", "tool_calls": [{"function": CALLED}]}
    prompts = [encode(given, **filled) for given in (ASKED, [ASKED[0], used, RESULT[2]])]
    teach(loaded, [*zip(prompts, (ANSWER, " It is."), strict=True)])
    made = tmp_path_factory.mktemp("taught")
    loaded.model.save_pretrained(made / "model")
    loaded.tokenizer.save_pretrained(made / "model")
    folder = keep_probe(made / "model", loaded, questions_file, made)
    with Session.open(folder, model=loaded) as session:
        yield session


@pytest.fixture(scope="module")
def calling(taught: Session) -> Iterator[Served]:
    with serving(taught) as opened:
        yield opened


def ask(served: Served, **more: Any) -> Any:
    given = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "max_tokens": 120, **more}
    return served.client().chat.completions.create(**given)


@pytest.mark.slow
def test_a_call_is_returned_and_is_never_a_low_risk(calling: Served) -> None:
    answer = ask(calling)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    [call] = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Lyon"},
    )
    assert answer.clew["state"] == "unavailable" and "calls tools" in answer.clew["reason"]
    assert answer.clew["risk"] is None and answer.clew["risk_level"] is None


@pytest.mark.slow
def test_a_stream_has_the_call_of_the_whole_answer(calling: Served) -> None:
    text, calls, chunks = "", [], [*ask(calling, stream=True)]
    for chunk in chunks:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        calls += delta.tool_calls or []
    [call] = calls
    [whole] = ask(calling).choices[0].message.tool_calls
    assert text.strip() == "Let me see." and "<" not in text
    assert call.index == 0 and call.function == type(call.function)(**whole.function.model_dump())
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].clew["state"] == "unavailable"
    with calling.client().chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[WEATHER], max_tokens=120
    ) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == whole.function.arguments


@pytest.mark.slow
def test_an_answer_from_the_result_of_a_tool_is_checked(calling: Served) -> None:
    answer = ask(calling, messages=RESULT)
    assert answer.choices[0].message.content.strip() == "It is."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.tool_calls is None
    assert answer.clew["state"] in ("checked", "out_of_distribution")


@pytest.mark.slow
def test_langchain_gets_the_call(calling: Served) -> None:
    from langchain_openai import ChatOpenAI  # takes a second, which only this test should wait

    model = ChatOpenAI(base_url=f"{calling.address}v1", api_key="none", model=MODEL, max_tokens=120)
    found = model.bind_tools([WEATHER]).invoke(ASKED)
    assert [(one["name"], one["args"]) for one in found.tool_calls] == [
        ("weather", {"city": "Lyon"})
    ]


@pytest.mark.slow
def test_without_a_choice_of_tools_the_model_does_not_see_them(calling: Served) -> None:
    none = ask(calling, tool_choice="none", max_tokens=4)
    plain = ask(calling, tools=[], max_tokens=4)
    assert none.usage == plain.usage
    assert none.choices[0].message == plain.choices[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        (
            {"tools": [{**WEATHER, "function": {"name": "a", "strict": True}}]},
            "tools[0].function.strict",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [*RESULT[:1], {**RESULT[1], "tool_calls": [{"id": "a"}]}]}, "messages[1]"),
    ],
)
def test_what_cannot_be_honored_is_refused(
    calling: Served, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(calling, **fields)
    assert caught.value.param.startswith(param)


@pytest.mark.slow
def test_a_model_without_tools_says_so(served: Served) -> None:
    for given, param in (({}, "tools"), ({"tools": [], "messages": RESULT}, "messages")):
        with pytest.raises(openai.BadRequestError, match="chat template knows no tools") as caught:
            ask(served, **given)
        assert caught.value.param == param


@pytest.mark.slow
def test_tools_are_refused_where_answers_may_be_withheld(taught: Session) -> None:
    with (
        serving(taught, on_risk="withhold") as opened,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        ask(opened)
    assert "may be withheld" in caught.value.message


LYON = '{"city": "Lyon"}'
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {LYON}}}\n</tool_call>'
FORMATS = {
    "<tool_call>": f"Yes.\n{HERMES}\n{HERMES}",
    "<tool_call> list": f"<tool_call>[{json.dumps(CALLED)}, {json.dumps(CALLED)}]</tool_call>",
    "<tool_call> <function=": (
        "Yes.\n<tool_call>\n<function=weather>\n<parameter=city>\nLyon\n</parameter>\n</function>\n"
        "</tool_call>"
    ),
    "<tool_call> <arg_key>": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Lyon</arg_value>\n</tool_call>"
    ),
    "[TOOL_CALLS] [ARGS]": f"[TOOL_CALLS]weather[ARGS]{LYON}[TOOL_CALLS]weather[ARGS]{LYON}",
    "[TOOL_CALLS]": f"[TOOL_CALLS] [{json.dumps(CALLED)}, {json.dumps(CALLED)}]",
    "<|tool_call>call:": '<|tool_call>call:weather{city:<|"|>Lyon<|"|>}<tool_call|>',
    "<|tool_call|>": f"<|tool_call|>[{json.dumps(CALLED)}]",
    '{"name": function name, "parameters": ': f'{{"name": "weather", "parameters": {LYON}}}',
}


def format_with(marks: str) -> ToolFormat:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = f"{{% if tools %}}{{{{ {marks!r} }}}}{{% endif %}}{{{{ messages }}}}"
    return ToolFormat(tokenizer)


def read(own: ToolFormat, text: str, **more: Any) -> Said:
    reader = own.reader([], [WEATHER], **more)
    parts = [reader.feed(Token(id=1, logprob=0.0, entropy=0.0, text=letter)) for letter in text]
    assert sum([*parts, reader.finish()], Said()) == reader.said
    return reader.said


@pytest.mark.parametrize("marks", FORMATS)
def test_calls_are_read_in_the_format_that_the_chat_template_shows(marks: str) -> None:
    text = FORMATS[marks]
    said = read(format_with(marks), text)
    assert len(said.calls) == max(1, text.count("weather"))
    for call in said.calls:
        function = call["function"]
        assert (function["name"], json.loads(function["arguments"])) == tuple(CALLED.values())
    assert said.content.strip() in ("", "Yes.")


@pytest.mark.parametrize("marks", FORMATS)
@pytest.mark.parametrize("text", ["It is { sunny }.", "", "\n\n"])
def test_answers_without_a_call_stay_as_they_are(marks: str, text: str) -> None:
    assert read(format_with(marks), text) == Said(content=text)


@pytest.mark.parametrize(
    "broken", ["<tool_call>{", "<tool_call>5</tool_call>", f"<tool_call>{'[' * 9000}"]
)
def test_what_only_looks_like_a_call_is_text(broken: str) -> None:
    assert read(format_with("<tool_call>"), f"See: {broken}") == Said(content=f"See: {broken}")


def test_only_the_first_call_is_kept_if_there_may_be_one() -> None:
    said = read(format_with("<tool_call>"), HERMES * 3, parallel=False)
    assert len(said.calls) == 1


def test_response_template_of_the_model_comes_first() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if tools %}<tool_call>{% endif %}{{ messages }}"
    call = {"open": "@", "close": "@", "content": "json", "repeats": True}
    fields = {"tool_calls": call | {"transform": {"function": "{content}"}}, "content": {}}
    fields["thinking"] = {"open": "(", "close": ")"}
    tokenizer.response_template = {"start_anchor": ":", "fields": fields}
    said = read(ToolFormat(tokenizer), f"(hm)It is @{json.dumps(CALLED)}@")
    assert (said.reasoning, said.content, len(said.calls)) == ("hm", "It is ", 1)


def test_unknown_formats_are_refused_with_what_to_do() -> None:
    with pytest.raises(InputError, match="add a response_template"):
        format_with("tools: ")
