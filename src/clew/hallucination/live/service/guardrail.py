"""LiteLLM's generic guardrail API: its proxy sends a request before the model answers, and the
answers afterwards. Answers come without their question, so that is kept until then."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew.base.typed_json import compact_json
from clew.hallucination.live.service.inspection import Clew, Inspection, Inspector, PassedAnswer
from clew.hallucination.live.service.relay import conceal, refusal
from clew.hallucination.live.service.requests import GUARDRAIL_PATH
from clew.hallucination.live.service.service import Serving
from clew.hallucination.live.service.telemetry import operation
from clew.pages.api import invalid
from clew.pages.service import read_json, reply

if TYPE_CHECKING:
    from fastapi import FastAPI, Response

_NO_QUESTION = (
    "LiteLLM did not send the question: set its guardrail's mode to [pre_call, post_call]"
)
# What is kept of requests that wait for their answers.
_MOST_REQUESTS, _MOST_CHARACTERS = 4096, 1 << 26
_NOTHING = {"action": "NONE"}


def add_guardrail(app: "FastAPI", service: Serving, inspector: Inspector) -> None:
    from fastapi import Request

    inspection = Inspection(inspector, service, service.settings.request_seconds)
    guardrail = Guardrail(service, inspection)

    @app.post(GUARDRAIL_PATH)
    async def guard(request: Request) -> "Response":
        service.lifecycle.check()
        return reply(await guardrail.answer(_read(await read_json(request))))


class Guardrail:
    """Says what becomes of answers, by the server's own rule for those without a low risk."""

    def __init__(self, service: Serving, inspection: Inspection) -> None:
        self._settings, self._inspection = service.settings, inspection
        self._asked: dict[str, tuple[dict[str, Any], int]] = {}
        self._size = 0

    async def answer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The action for a request or the answers to one."""
        call = given.get("litellm_call_id") or ""
        if given["input_type"] == "request":
            self._keep(call, _asked_fields(given))
            return _NOTHING
        asked = self._asked[call][0] if call in self._asked else None
        texts, has_calls = given.get("texts") or [""], bool(given.get("tool_calls"))
        if asked is None:
            found = [self._inspection.give_up(_NO_QUESTION) for _ in texts]
        else:
            answers = _pass_answers(asked, texts, call, has_calls=has_calls)
            found = await asyncio.gather(*map(self._inspection.check, answers))
        for place, clew in enumerate(found):
            operation().add_answer(clew, index=place)
        return self._decide(texts, found)

    def _keep(self, call: str, fields: dict[str, Any]) -> None:
        """The oldest make room."""
        size = len(compact_json(fields))
        _, old = self._asked.pop(call, ({}, 0))
        self._asked[call] = fields, size
        self._size += size - old
        while len(self._asked) > _MOST_REQUESTS or self._size > _MOST_CHARACTERS:
            self._size -= self._asked.pop(next(iter(self._asked)))[1]

    def _decide(self, texts: Sequence[str], found: Sequence[Clew]) -> dict[str, Any]:
        withheld = [clew for clew in found if clew["withheld"]]
        if not withheld:
            return {**_NOTHING, "clew": found}
        clews = [conceal(clew) if clew["withheld"] else clew for clew in found]
        if (told := self._settings.replacement) is None:
            return {"action": "BLOCKED", "blocked_reason": refusal(withheld[0]), "clew": clews}
        shown = [
            told if clew["withheld"] else text for text, clew in zip(texts, found, strict=True)
        ]
        return {"action": "GUARDRAIL_INTERVENED", "texts": shown, "clew": clews}


def _pass_answers(
    asked: Mapping[str, Any], texts: Sequence[str], call: str, *, has_calls: bool
) -> list[PassedAnswer]:
    prompts = asked.get("prompt")
    n = len(texts) // len(prompts) if isinstance(prompts, list) else 1
    return [
        PassedAnswer(
            asked={**asked, "n": n},
            is_chat="messages" in asked,
            text=text,
            id=call[:200],
            index=place,
            choices=len(texts),
            has_calls=has_calls,
        )
        for place, text in enumerate(texts)
    ]


def _read(body: Any) -> dict[str, Any]:
    """The body of a request, of which only what is used is checked. Raises ApiError."""
    kinds: dict[str, Any] = {
        "input_type": str,
        "litellm_call_id": str | None,
        "texts": list | None,
        "structured_messages": list | None,
    }
    given = body if isinstance(body, dict) else {}
    for name, kind in kinds.items():
        if not isinstance(given.get(name), kind):
            raise invalid(name, f"'{name}' is not what LiteLLM's generic guardrail API sends.")
    if given["input_type"] not in ("request", "response"):
        raise invalid("input_type", "'input_type' is neither request nor response.")
    if not all(isinstance(text, str) for text in given.get("texts") or ()):
        raise invalid("texts", "'texts' is not a list of texts.")
    return given


def _asked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """A request's messages, or its prompts."""
    if given.get("structured_messages"):
        return {"messages": given["structured_messages"]}
    texts = given.get("texts") or [""]
    return {"prompt": texts[0] if len(texts) == 1 else texts}
