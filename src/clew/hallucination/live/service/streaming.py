"""Answers as server-sent events."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from clew.base.typed_json import compact_json
from clew.hallucination.live.answers import LiveAnswer
from clew.hallucination.live.service.answering import Answering, Work
from clew.hallucination.live.service.asked import Asked
from clew.hallucination.live.service.service import Service
from clew.pages.api import ApiError

_DONE = "data: [DONE]\n\n"


async def stream(
    service: Service, asked: Asked, work: Sequence[Work], answering: Answering
) -> AsyncGenerator[str]:
    """Server-sent events: a chunk per token, one at the end of each answer, [DONE]. What goes wrong
    on the way is a chunk with an error, as OpenAI's clients expect it."""
    chunks = _chunks(service, asked, work, answering)
    waiting = ""
    with service.lifecycle.running(answering):
        try:
            async for chunk in chunks:
                waiting += _event(chunk)
                if not answering.has_more:  # what has come meanwhile is sent together
                    yield waiting
                    waiting = ""
        except ApiError as error:
            yield waiting + _event(error.body())
            waiting = ""
        finally:
            await chunks.aclose()
        yield waiting + _DONE


async def _chunks(
    service: Service, asked: Asked, work: Sequence[Work], answering: Answering
) -> AsyncGenerator[dict[str, Any]]:
    shape = service.shape(asked)
    no_usage = {"usage": None} if asked.includes_usage else {}
    offsets, tokens = [0] * len(work), 0
    for choice in range(len(work)):
        if first := shape.start(choice):
            yield first | no_usage
    async for choice, event in answering.events():
        if isinstance(event, LiveAnswer):
            service.record(endpoint(asked), work[choice], event)
            tokens += len(event.tokens)
            yield shape.end(choice, event) | no_usage
        else:
            yield shape.token(choice, event, offsets[choice]) | no_usage
            offsets[choice] += len(event.text)
    if asked.includes_usage:
        yield shape.usage(prompt_tokens(work, asked.n), tokens)


def endpoint(asked: Asked) -> str:
    return "chat" if asked.is_chat else "completions"


def prompt_tokens(work: Sequence[Work], n: int) -> int:
    """Every prompt is counted once, however many answers it gets."""
    return sum(len(one.request.prompt) for one in work[::n])


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {compact_json(chunk)}\n\n"
