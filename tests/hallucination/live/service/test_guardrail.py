"""LiteLLM's proxy in front: the requests that it sends to a guardrail, and what clients get."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clew.hallucination.live.session import Session
from tests.hallucination.live.service.serving import Served, serving
from tests.hallucination.live.service.upstreams import ANSWER, Handler, running

PATH = "beta/litellm_basic_guardrail_api"
KEY = "sk-guard-12345678901234567890"
# LiteLLM has an environment of its own: it wants an older rich.
LITELLM = os.environ.get("CLEW_TEST_LITELLM", "")
# As LiteLLM 1.106.2 sent them.
COMMON: dict[str, Any] = {
    "litellm_call_id": "b96d2aeb-664d-44f2-b3e2-b6c50afbc2d7",
    "litellm_trace_id": "06a7d816-247c-4271-8c09-856522e481c7",
    "images": None,
    "tools": None,
    "request_data": {},
    "request_headers": {"host": "127.0.0.1:18501", "user-agent": "curl/7.88.1", "accept": "*/*"},
    "litellm_version": "1.106.2",
    "additional_provider_specific_params": {},
    "tool_calls": None,
}
BEFORE = {
    **COMMON,
    "input_type": "request",
    "structured_messages": [{"role": "user", "content": "What is the capital of France?"}],
    "texts": ["What is the capital of France?"],
    "model": "any",
}
BEFORE_TEXT = {**BEFORE, "structured_messages": None, "model": "text"}
AFTER = {
    **COMMON,
    "input_type": "response",
    "structured_messages": None,
    "texts": ["Paris is the capital."],
    "model": "tiny",
}


def guard(served: Served, *requests: dict[str, Any]) -> Any:
    """What the last of the requests gets."""
    for one in requests:
        status, content, _ = served.fetch(PATH, one)
        assert status == 200, content
    return content


@pytest.fixture(scope="module")
def withholding(session: Session) -> Iterator[Served]:
    with serving(session, on_risk="withhold") as opened:
        yield opened


def test_an_answer_has_the_risk_of_v1_score(served: Served) -> None:
    assert guard(served, BEFORE) == {"action": "NONE"}
    found = guard(served, AFTER)
    asked = {"messages": BEFORE["structured_messages"], "answer": "Paris is the capital."}
    scored = served.fetch("v1/score", asked)[1]
    assert found["action"] == "NONE" and found["clew"][0]["state"] == scored["state"]
    assert found["clew"][0]["risk"] == pytest.approx(scored["risk"], abs=1e-4)


@pytest.mark.parametrize("before", [BEFORE, BEFORE_TEXT])
def test_every_text_of_a_response_is_checked(served: Served, before: dict[str, Any]) -> None:
    found = guard(served, before, {**AFTER, "texts": ["Paris.", "Rome is the capital."]})
    assert len(found["clew"]) == 2 and found["action"] == "NONE"


def test_an_answer_without_its_question_is_not_checked(served: Served, withholding: Served) -> None:
    alone = {**AFTER, "litellm_call_id": "another"}
    [clew] = guard(served, alone)["clew"]
    assert clew["state"] == "unavailable" and "[pre_call, post_call]" in clew["reason"]
    found = guard(withholding, alone)
    assert found["action"] == "BLOCKED" and "withheld" in found["blocked_reason"]


def test_what_is_withheld_or_replaced_follows_the_servers_rule(
    session: Session, withholding: Served
) -> None:
    """An empty answer has no risk, so it is never shown."""
    after = {**AFTER, "texts": ["", "Paris is the capital."]}
    found = guard(withholding, BEFORE, after)
    assert found["action"] == "BLOCKED" and found["clew"][0]["tokens"] == []
    with serving(session, on_risk="replace", replacement="Not sure.") as replacing:
        found = guard(replacing, BEFORE, after)
    assert found["action"] == "GUARDRAIL_INTERVENED" and found["texts"][0] == "Not sure."
    shown = "Not sure." if found["clew"][1]["withheld"] else "Paris is the capital."
    assert found["texts"][1] == shown


def test_only_clients_with_a_key_are_answered(session: Session) -> None:
    with serving(session, keys=[KEY]) as served:
        assert served.fetch(PATH, BEFORE)[0] == 401
        assert served.fetch(PATH, BEFORE, **{"x-api-key": KEY})[0] == 200


@pytest.mark.parametrize(
    "wrong", [{"input_type": "both"}, {"texts": [1]}, {"litellm_call_id": 1}, {"texts": "a"}]
)
def test_another_body_is_refused(served: Served, wrong: dict[str, Any]) -> None:
    status, content, _ = served.fetch(PATH, {**AFTER, **wrong})
    assert status == 400 and content["error"]["param"] in wrong


@contextmanager
def proxy(upstream: str, guardrail: str, mode: Any, folder: Path) -> Iterator[str]:
    """The real proxy in front of a model, with the server as its guardrail; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = {"model": "openai/tiny", "api_base": upstream, "api_key": "none"}
    rules = {
        "guardrail": "generic_guardrail_api",
        "mode": mode,
        "api_base": guardrail,
        "api_key": KEY,
        "default_on": True,
        "streaming_end_of_stream_only": True,
    }
    config = {
        "model_list": [{"model_name": "any", "litellm_params": model}],
        "guardrails": [{"guardrail_name": "clew", "litellm_params": rules}],
        "general_settings": {"master_key": KEY},
    }
    file = folder / "config.yaml"
    file.write_text(json.dumps(config), "utf-8")  # JSON is YAML, too
    command = [LITELLM, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        try:
            while not is_listening(port):
                assert process.poll() is None, (folder / "log").read_text("utf-8")
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait()


def is_listening(port: int) -> bool:
    threading.Event().wait(0.1)
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.skipif(not LITELLM, reason="requires LiteLLM's proxy: make test-integrations")
def test_the_real_proxy_delivers_or_blocks(session: Session, tmp_path: Path) -> None:
    """Without the call before the answer, nothing can be checked, which is withheld."""
    asked = {"model": "any", "messages": BEFORE["structured_messages"]}
    for on_risk, mode in (("flag", ["pre_call", "post_call"]), ("withhold", "post_call")):
        with (
            running(Handler) as upstream,
            serving(session, keys=[KEY], on_risk=on_risk) as served,
            proxy(upstream.url, served.address, mode, tmp_path) as address,
        ):
            front = Served(address=address, session=session, ending=served.ending)
            headers = {"Authorization": f"Bearer {KEY}"}
            status, content, _ = front.fetch("v1/chat/completions", asked, **headers)
            counted = served.fetch("metrics", **headers)[1]
        if on_risk == "flag":
            assert status == 200 and content["choices"][0]["message"]["content"] == ANSWER
            assert 'clew_answers_total{endpoint="upstream",state="checked"' in counted
        else:
            assert status >= 400 and "The answer was withheld" in content["error"]["message"]
