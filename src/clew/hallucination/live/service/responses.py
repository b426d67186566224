"""Answers in OpenAI's shape, whole and in chunks, each with its `clew` object."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.hallucination.detectors import Detector
    from clew.hallucination.detectors.data import Risk
    from clew.hallucination.live.delivery import LiveAnswer
    from clew.hallucination.live.scoring import Scored
    from clew.hallucination.live.service.requests import Asked
    from clew.hallucination.live.service.service import Service
    from clew.hallucination.live.service.tools import Said
    from clew.hallucination.llm.requests import Token

# JSON has no infinity. The log probability of a token that cannot come, as OpenAI writes it.
_IMPOSSIBLE = -9999.0
_BROKEN = "\ufffd"


def clew_object(
    risk: "Risk", detector: "Detector", tokens: "Sequence[Token] | None" = None
) -> dict[str, Any]:
    """What the detector says about an answer, the risk of its tokens included."""
    found = {**risk.to_dict(), "detector": detector.name, "warning": detector.warning}
    return found if tokens is None else {**found, "tokens": _describe_tokens(tokens)}


def _describe_tokens(tokens: "Sequence[Token]") -> list[dict[str, Any]]:
    return [
        {"token": one.text, "id": one.id, "risk": one.risk, "logprob": _finite(one.logprob)}
        for one in tokens
    ]


def scored_object(
    scored: "Scored", detector: "Detector", tokens: Sequence[int], texts: Sequence[str]
) -> dict[str, Any]:
    """What the detector says about a given answer."""
    risks = scored.token_risks or (None,) * len(tokens)
    logprobs = scored.logprobs or (None,) * len(tokens)
    described = [
        {"token": text, "id": token, "risk": risk, "logprob": logprob}
        for text, token, risk, logprob in zip(texts, tokens, risks, logprobs, strict=True)
    ]
    return {**clew_object(scored.risk, detector), "tokens": described}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The answers of one request. If it `is_only` one, its `clew` object is also at the top.
    `top_logprobs` is None if they are not asked for; `token_text` is the text of a token that was
    not chosen; `promise` is what is promised of an answer."""

    is_chat: bool
    is_only: bool
    model: str
    fingerprint: str
    detector: "Detector"
    top_logprobs: int | None
    token_text: Callable[[int], str]
    promise: "Callable[[Risk], dict[str, float] | None]" = lambda _: None
    number: str = field(default_factory=lambda: token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, service: "Service", asked: "Asked") -> "Shape":
        detector, tokenizer = service.session.detector, service.session.tokenizer
        return cls(
            is_chat=asked.is_chat,
            is_only=asked.answers == 1,
            model=service.model_name,
            fingerprint=f"fp_{str(detector.model.get('fingerprint', ''))[:10]}",
            detector=detector,
            top_logprobs=asked.alternatives,
            token_text=lambda token: str(tokenizer.decode([token])),
            promise=partial(service.promise_for, is_usual=service.is_usual(asked)),
        )

    def whole(
        self, answers: "Sequence[LiveAnswer]", prompt_tokens: int, answer_tokens: int
    ) -> dict[str, Any]:
        """The response with all answers."""
        choices = [self._choice(place, one) for place, one in enumerate(answers)]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": _usage(prompt_tokens, answer_tokens),
            **({"clew": choices[0]["clew"]} if self.is_only else {}),
        }

    def start(self, choice: int) -> dict[str, Any] | None:
        """A chat's first chunk, which has the role."""
        if not self.is_chat:
            return None
        return self._chunk(choice, {"role": "assistant", "content": "", "refusal": None}, None)

    def token(self, choice: int, token: "Token", offset: int) -> dict[str, Any]:
        """The chunk of a token, with its risk; `offset` is where its text starts."""
        clew = {"tokens": _describe_tokens([token])}
        content = {"content": token.text} if self.is_chat else token.text
        return self._chunk(choice, content, clew, logprobs=self._logprobs([token], offset))

    def said(
        self, choice: int, said: "Said", tokens: "Sequence[Token]", calls: int
    ) -> dict[str, Any]:
        """The chunk of what tokens add to an answer that has so many `calls` of tools already."""
        called = [{"index": calls + place, **one} for place, one in enumerate(said.calls)]
        given = {"reasoning_content": said.reasoning, "content": said.content, "tool_calls": called}
        clew = {"tokens": _describe_tokens(tokens)}
        delta = {name: value for name, value in given.items() if value}
        return self._chunk(choice, delta, clew, logprobs=self._logprobs(tokens, 0))

    def body(self, choice: int, answer: "LiveAnswer") -> "Iterator[dict[str, Any]]":
        """The chunks of an answer that is sent once its risk is known: its tokens, or what takes
        their place."""
        offset = 0
        for one in answer.tokens:
            yield self.token(choice, one, offset)
            offset += len(one.text)
        if answer.is_withheld and answer.text:
            yield self._chunk(
                choice, {"content": answer.text} if self.is_chat else answer.text, None
            )

    def end(self, choice: int, answer: "LiveAnswer") -> dict[str, Any]:
        """The last chunk of an answer, with its risk and the risks of all its tokens."""
        clew = self._clew(answer, answer.tokens)
        last = self._logprobs([], 0, self._clew(answer))
        refusal = _refusal(answer)
        content: Any = ({"refusal": refusal} if refusal else {}) if self.is_chat else ""
        return self._chunk(choice, content, clew, answer.finish_reason, logprobs=last)

    def _clew(
        self, answer: "LiveAnswer", tokens: "Sequence[Token] | None" = None
    ) -> dict[str, Any]:
        found = clew_object(answer.risk, self.detector, tokens)
        return {**found, "withheld": answer.is_withheld, "promise": self.promise(answer.risk)}

    def usage(self, prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
        """The chunk after the last one, if it is asked for."""
        return {
            **self._head("chat.completion.chunk"),
            "choices": [],
            "usage": _usage(prompt_tokens, completion_tokens),
        }

    @property
    def id(self) -> str:
        return f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.number}"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def _chunk(
        self,
        choice: int,
        content: Any,
        clew: dict[str, Any] | None,
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        found = {} if clew is None else {"clew": clew}
        inner = {
            "index": choice,
            ("delta" if self.is_chat else "text"): content,
            "logprobs": logprobs,
            "finish_reason": reason,
            **found,
        }
        above = found if self.is_only else {}
        return {**self._head("chat.completion.chunk"), "choices": [inner], **above}

    def _choice(self, place: int, answer: "LiveAnswer") -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        message["refusal"] = _refusal(answer)
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message |= {"content": answer.text.strip() or None, "tool_calls": [*answer.calls]}
        return {
            "index": place,
            **({"message": message} if self.is_chat else {"text": answer.text}),
            "logprobs": self._logprobs(answer.tokens, 0, self._clew(answer)),
            "finish_reason": answer.finish_reason,
            "clew": self._clew(answer, answer.tokens),
        }

    def _logprobs(
        self, tokens: "Sequence[Token]", offset: int, clew: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """None if they are not asked for. The answer's risk is in them too: LangChain keeps these
        and drops what it does not know."""
        if self.top_logprobs is None:
            return None
        found = self._of_chat(tokens) if self.is_chat else self._of_text(tokens, offset)
        return found if clew is None else {**found, "clew": clew}

    def _of_chat(self, tokens: "Sequence[Token]") -> dict[str, Any]:
        content = [
            {
                **_with_bytes(one.text, one.logprob),
                "top_logprobs": [
                    _with_bytes(self.token_text(other), logprob) for other, logprob in one.top
                ],
            }
            for one in tokens
        ]
        return {"content": content, "refusal": None}

    def _of_text(self, tokens: "Sequence[Token]", offset: int) -> dict[str, Any]:
        offsets = []
        for one in tokens:
            offsets.append(offset)
            offset += len(one.text)
        return {
            "tokens": [one.text for one in tokens],
            "token_logprobs": [_finite(one.logprob) for one in tokens],
            "top_logprobs": [self._top_of(one) for one in tokens] if self.top_logprobs else None,
            "text_offset": offsets,
        }

    def _top_of(self, token: "Token") -> dict[str, float]:
        """The most likely tokens by their text, and always the chosen one, as in OpenAI's API. Of
        several with the same text, the most likely counts."""
        found: dict[str, float] = {}
        for other, logprob in token.top:
            found.setdefault(self.token_text(other), _finite(logprob))
        if all(other != token.id for other, _ in token.top):
            found.setdefault(token.text, _finite(token.logprob))
        return found


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _refusal(answer: "LiveAnswer") -> str | None:
    """Why there is no text, in OpenAI's field for it."""
    is_missing = answer.is_withheld and not answer.text
    return f"The answer was withheld: {answer.risk.words}." if is_missing else None


def _with_bytes(text: str, logprob: float) -> dict[str, Any]:
    """A token that is only a part of a character has no text of its own."""
    known = None if _BROKEN in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": known}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE
