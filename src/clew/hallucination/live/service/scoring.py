"""Answers that exist already: `POST /score`."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clew.errors import InputError
from clew.hallucination.live.service.errors import ApiError, busy, invalid, out_of_time, unusable
from clew.hallucination.live.service.fields import Fields, Wanted
from clew.hallucination.live.service.messages import last_question, only_question, read_messages
from clew.hallucination.live.service.service import Service
from clew.hallucination.live.service.shapes import scored_object

if TYPE_CHECKING:
    from clew.hallucination.live.scoring import ToScore

_ITEM = Fields(
    honored={
        "question": Wanted(str, "a text"),
        "messages": Wanted(list[Any], "a list of messages"),
        "context": Wanted(str, "a text"),
        "answer": Wanted(str, "a text"),
    }
)
# Requests that may wait while another is scored.
_MAX_WAITING = 64


class Scoring:
    """Scores given answers, one request at a time: each takes a whole batch of the model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def score(self, body: Any) -> Any:
        """The `clew` object of an answer, or a list of them for a list. Raises ApiError, which
        names the item that cannot be used."""
        given = body if isinstance(body, list) else [body]
        most = self._service.settings.max_items
        if len(given) > most:
            text = f"The request has {len(given):,} items: give at most {most:,}."
            raise ApiError(422, text, code="too_many_items")
        if self._waiting >= _MAX_WAITING:
            raise busy(self._waiting)
        seconds = self._service.settings.request_seconds
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds), self._turn:
                found = await asyncio.to_thread(self._score, given, isinstance(body, list))
        except TimeoutError:
            raise out_of_time(seconds) from None
        finally:
            self._waiting -= 1
        return found if isinstance(body, list) else found[0]

    def _score(self, given: Sequence[Any], is_list: bool) -> list[dict[str, Any]]:
        session = self._service.session
        items = [
            self._read(one, f"[{place}]" if is_list else "") for place, one in enumerate(given)
        ]
        found = []
        for item, scored in zip(items, session.score(items, tokens=True), strict=True):
            self._service.metrics.count_answer(scored.risk, "score")
            texts = [str(session.tokenizer.decode([token])) for token in item.tokens]
            found.append(scored_object(scored, session.detector.name, item.tokens, texts))
        return found

    def _read(self, given: Any, path: str) -> "ToScore":
        from clew.hallucination.live.scoring import ToScore

        dot = f"{path}." if path else ""
        found = _ITEM.read(given, dot)
        answer = found["answer"]
        if answer is None:
            raise invalid(f"{dot}answer", f"{dot}answer: give the answer to score.")
        try:
            prompt, question = self._encode(found, dot)
            [tokens] = self._service.session.encoder.encode_answers([answer])
        except InputError as error:
            raise unusable(path or "question", error) from None
        return ToScore(prompt=prompt, tokens=tokens, question=question, text=answer, name=question)

    def _encode(self, found: dict[str, Any], dot: str) -> tuple[list[int], str]:
        """The prompt, and the question in it: a conversation's last message of the user."""
        session, question, context = self._service.session, found["question"], found["context"]
        if (question is None) == (found["messages"] is None):
            raise invalid(f"{dot}question", f"{dot}question: give 'question' or 'messages'.")
        if question is None:
            messages = read_messages(found["messages"], f"{dot}messages")
            if not messages:
                raise invalid(f"{dot}messages", f"{dot}messages: give 1 or more.")
            question = (
                None if self._service.settings.prompt == "messages" else only_question(messages)
            )
            if question is None:
                if context is not None:
                    raise invalid(f"{dot}context", f"{dot}context: put the text in a message.")
                return session.encode_messages(messages), last_question(messages)
        return session.encode(question, context), question
