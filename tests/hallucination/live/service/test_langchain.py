"""LangChain's ChatOpenAI against a real server, and the example in the guide."""

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hallucination.live.service.serving import MODEL, Served

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

QUESTION = "What is the capital of France?"
GUIDE = Path(__file__).parents[4] / "docs/guides/serve.md"


def chat(served: Served, **options: Any) -> "ChatOpenAI":
    from langchain_openai import ChatOpenAI  # takes a second, which only these tests should wait

    given = {"model": MODEL, "api_key": "none", "max_retries": 0, "logprobs": True, **options}
    return ChatOpenAI(base_url=f"{served.address}v1", **given)


def test_a_message_has_its_text_usage_and_risk(served: Served) -> None:
    message = chat(served).invoke([("system", "Be brief."), ("user", QUESTION)])
    assert message.content and message.usage_metadata["total_tokens"] > 0
    metadata = message.response_metadata
    assert metadata["model_name"] == MODEL and metadata["finish_reason"] in ("stop", "length")
    assert {"risk", "state", "verdict"} <= {*metadata["logprobs"]["clew"]}


def test_a_stream_adds_up_to_the_message(served: Served) -> None:
    model = chat(served, stream_usage=True)
    whole = None
    for chunk in model.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    message = model.invoke(QUESTION)
    assert whole is not None and whole.content == message.content
    assert whole.usage_metadata == message.usage_metadata
    found = whole.response_metadata["logprobs"]["clew"]
    assert found["state"] == message.response_metadata["logprobs"]["clew"]["state"]


def test_batches_and_async_calls_work(served: Served) -> None:
    model = chat(served, max_tokens=4, temperature=0.8, seed=3, top_p=0.9, stop=["zzz"])
    together = model.batch([QUESTION] * 3)
    alone = asyncio.run(model.ainvoke(QUESTION))
    assert {message.content for message in together} == {alone.content}


def test_a_model_that_knows_no_tools_refuses_them(served: Served) -> None:
    tool = {"name": "look_up", "description": "Look it up.", "parameters": {"type": "object"}}
    with pytest.raises(Exception, match="chat template knows no tools"):
        chat(served).bind_tools([tool]).invoke(QUESTION)


def test_the_example_in_the_guide_runs(served: Served) -> None:
    [code, *_] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("http://127.0.0.1:8000/", served.address).replace("smollm2", MODEL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(GUIDE), "exec"), {})
    assert len(printed.getvalue().splitlines()) >= 4
