"""`response_format`: answers of a random model have the schema that a request gives."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from clew.base.errors import InputError
from clew.hallucination.llm import scheduler
from clew.hallucination.llm.engine import Engine
from clew.hallucination.llm.grammar import Grammars
from clew.hallucination.llm.graphs import GraphPasses
from clew.hallucination.llm.requests import Request
from tests.builders import tiny_loaded
from tests.hallucination.live.service.serving import DIALOGUE, MODEL, QUESTION, Served

pytest.importorskip("llguidance")
pytestmark = pytest.mark.slow


class City(BaseModel):
    """Short enough for a random model to end it."""

    capital: bool
    size: int
    names: list[bool]


BOUNDED = {
    "type": "object",
    "properties": {
        "capital": {"type": "boolean"},
        "name": {"type": "string", "maxLength": 4},
        "sizes": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3},
    },
    "required": ["capital", "name", "sizes"],
    "additionalProperties": False,
}
ASKED = {"model": MODEL, "messages": QUESTION, "max_tokens": 200}


def with_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def ask(served: Served, schema: Any = BOUNDED, **more: Any) -> Any:
    given = {**ASKED, "response_format": with_schema(schema), **more}
    return served.client().chat.completions.create(**given)


def assert_bounded(text: str) -> None:
    found = json.loads(text)
    assert isinstance(found["capital"], bool) and len(found["name"]) <= 4
    assert {*found["sizes"]} <= {1, 2} and len(found["sizes"]) <= 3 and len(found) == 3


def test_answers_have_the_schema_whole_and_in_a_stream(served: Served) -> None:
    answer = ask(served)
    [choice] = answer.choices
    assert_bounded(choice.message.content)
    assert choice.finish_reason == "stop"
    assert answer.clew["state"] in ("checked", "out_of_distribution")
    chunks = ask(served, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content


def test_drawn_answers_have_it_too_and_differ(served: Served) -> None:
    found = ask(served, n=4, temperature=1.5, seed=3, frequency_penalty=0.5).choices
    for one in found:
        assert_bounded(one.message.content)
    assert len({one.message.content for one in found}) > 1


def test_any_object_is_an_object_up_to_the_limit(served: Served) -> None:
    format = {"type": "json_object"}
    answer = served.client().chat.completions.create(
        **{**ASKED, "max_tokens": 20, "response_format": format}
    )
    assert answer.choices[0].message.content.startswith("{")
    assert answer.clew["state"] == "unavailable", "it was cut off"


def test_types_of_the_openai_client_are_parsed(served: Served) -> None:
    schema = City.model_json_schema()
    schema["properties"] |= {"size": {"const": 7}, "names": {"const": [True]}}
    kept = {**schema, "additionalProperties": False}
    assert City.model_validate_json(ask(served, kept).choices[0].message.content).size == 7
    client = served.client().chat.completions
    with pytest.raises(openai.LengthFinishReasonError):  # an integer of a random model has no end
        client.parse(**{**ASKED, "max_tokens": 3}, response_format=City)


def test_other_answers_of_the_batch_are_as_they_are_alone(served: Served) -> None:
    def plain() -> str:
        given = {"model": MODEL, "messages": DIALOGUE, "max_tokens": 60}
        answer = served.client().chat.completions.create(**given)
        return str(answer.choices[0].message.content)

    alone = plain(), ask(served).choices[0].message.content
    with ThreadPoolExecutor(12) as pool:
        both = [(pool.submit(plain), pool.submit(ask, served)) for _ in range(6)]
        for one, other in both:
            assert (one.result(), other.result().choices[0].message.content) == alone


@pytest.mark.parametrize("ahead", [False, True])
def test_answers_have_it_where_passes_are_launched_ahead(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ahead:  # as on a GPU
        monkeypatch.setattr(scheduler, "choose_passes", GraphPasses)
    loaded = tiny_loaded()
    grammar = Grammars(loaded.tokenizer, [0]).compile(BOUNDED)
    with Engine(loaded, max_rows=4) as engine:
        asked = [Request(prompt=[7 + n], max_new_tokens=120, grammar=grammar) for n in range(6)]
        found = [ticket.finished() for ticket in [engine.submit(one) for one in asked]]
    for answer in found:
        assert answer.ended == "end"
        assert_bounded(answer.text)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, Any] = {
    "an unknown type": {"type": "thing"},
    "an invalid expression": {"type": "string", "pattern": "(["},
    "expressions that take hours together": {
        "allOf": [{"type": "string", "pattern": f".*a.{{{n}}}b.*"} for n in range(1, 30)]
    },
    "itself and nothing else": {"$ref": "#"},
    "a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}},
    "an address": {"$ref": "http://127.0.0.1:9/schema"},
    "no value": {"not": {}},
    "many values": {"enum": [f"value {n}" for n in range(6000)]},
    "deep": nested(24),
}


@pytest.mark.parametrize("name", [*HOSTILE])
def test_hostile_schemas_are_one_sentence_or_work(served: Served, name: str) -> None:
    try:
        answer = ask(served, HOSTILE[name], max_tokens=100)
    except openai.BadRequestError as error:
        assert error.param == "response_format" and len(error.message) < 700
    else:
        assert name == "deep" and json.loads(answer.choices[0].message.content)
    assert ask(served).choices[0].finish_reason == "stop"


def test_schema_that_takes_too_much_on_the_way_ends_only_its_own_request(served: Served) -> None:
    evil = {"type": "string", "pattern": "^(([a-z]{1,1000}){1,1000}){1,1000}$"}
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(ask, served) for _ in range(2)]
        with pytest.raises(openai.UnprocessableEntityError, match="schema took too much"):
            ask(served, evil)
        for one in others:
            assert_bounded(one.result().choices[0].message.content)


@pytest.mark.parametrize(
    "given",
    [{"type": "xml"}, {}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}],
)
def test_other_formats_are_refused(served: Served, given: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format"):
        served.client().chat.completions.create(**ASKED, response_format=given)


def test_without_llguidance_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance.hf", None)
    with pytest.raises(InputError, match=r"pip install 'clew\[json\]'"):
        Grammars(tiny_loaded().tokenizer, [0]).compile({"type": "object"})
