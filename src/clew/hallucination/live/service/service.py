"""What the routes share: the session, its limits, and how a request becomes work for it."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from clew.base.errors import ClewError, InputError, QueueFullError
from clew.hallucination.live.service.answering import Answering, Work
from clew.hallucination.live.service.asked import Asked
from clew.hallucination.live.service.errors import over_limit, too_long, unusable
from clew.hallucination.live.service.messages import last_question, only_question
from clew.hallucination.live.service.metrics import Metrics
from clew.hallucination.live.service.settings import ServiceSettings
from clew.hallucination.live.service.shapes import Shape
from clew.hallucination.llm.requests import Request
from clew.pages.api import ApiError, Lifecycle, busy, failed, invalid

if TYPE_CHECKING:
    from clew.hallucination.live.answers import LiveAnswer
    from clew.hallucination.live.session import Session
    from clew.hallucination.llm.prompts import Cut

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A session behind an API."""

    session: "Session"
    settings: ServiceSettings
    lifecycle: Lifecycle
    metrics: Metrics
    started: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def model_name(self) -> str:
        return self.settings.name_of(self.session.detector.model)

    @property
    def context(self) -> int:
        """Tokens of a prompt and its answer together that are allowed."""
        return self.session.max_tokens

    def check_model(self, name: str | None) -> None:
        """One model is served: a request may omit its name, but not name another."""
        own = self.model_name
        if name is not None and name != own:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist: this server has '{own}'.",
                param="model",
                code="model_not_found",
            )

    def prepare(self, asked: Asked) -> list[Work]:
        """The work for the engine: every prompt `n` times. Raises ApiError. Tokenizes, so it runs
        in a thread of its own."""
        count, most = asked.answers, self.settings.max_choices
        most = min(most, self.session.most_at_once or most)
        if count > most:
            text = f"this server gives at most {most} answers per request"
            raise invalid("n", f"The request asks for {count} answers: {text}.")
        try:
            encoded = self._encode(asked)
        except InputError as error:
            raise unusable(asked.prompt_name, error) from None
        limits = [self._answer_tokens(asked, one) for one in encoded]
        return [
            self._work(asked, one, limit, place * asked.n + choice)
            for place, (one, limit) in enumerate(zip(encoded, limits, strict=True))
            for choice in range(asked.n)
        ]

    def _work(self, asked: Asked, prompt: "_Encoded", limit: int, choice: int) -> Work:
        request = Request(
            prompt=prompt.tokens,
            max_new_tokens=limit,
            sampling=asked.sampling_of(choice),
            stop=asked.stop,
            cut=prompt.cut,
            top_logprobs=asked.top_logprobs or 0,
        )
        return Work(request=request, question=prompt.question)

    def _encode(self, asked: Asked) -> list["_Encoded"]:
        longest = self.settings.max_tokens
        if asked.messages is None:
            return [self._encode_text(prompt, longest) for prompt in asked.prompts]
        session, question = self.session, only_question(asked.messages)
        if question is None or self.settings.prompt == "messages":
            _refuse_context(asked)
            tokens = session.encode_messages(asked.messages)
            last = last_question(asked.messages)
            return [_Encoded(tokens=tokens, question=last, max_tokens=longest)]
        made = session.make_request(question, asked.context)
        most = min(made.max_new_tokens, longest)
        return [_Encoded(tokens=made.prompt, question=question, max_tokens=most, cut=made.cut)]

    def _encode_text(self, prompt: str | list[int], longest: int) -> "_Encoded":
        if isinstance(prompt, str):
            tokens = self.session.encoder.encode_text(prompt)
            return _Encoded(tokens=tokens, question=prompt, max_tokens=longest)
        text = str(self.session.tokenizer.decode(self._check_ids(prompt)))
        return _Encoded(tokens=prompt, question=text, max_tokens=longest)

    def _check_ids(self, prompt: list[int]) -> list[int]:
        size = len(self.session.tokenizer)
        largest = max(prompt)
        if largest >= size:
            raise invalid("prompt", f"{largest} is not a token of the model, which has {size:,}.")
        return prompt

    def _answer_tokens(self, asked: Asked, prompt: "_Encoded") -> int:
        """How long the answer may be. Raises ApiError if prompt or answer are too long."""
        has, most = len(prompt.tokens), self.settings.max_prompt_tokens
        if most is not None and has > most:
            text = f"The prompt has {has:,} tokens: this server takes at most {most:,}."
            raise too_long(asked.prompt_name, text)
        wanted = asked.max_tokens or prompt.max_tokens
        if wanted > self.settings.max_tokens:
            text = f"{asked.limit_name} is {wanted:,}: give at most {self.settings.max_tokens:,}."
            raise over_limit(asked.limit_name, text)
        room = self.context - has
        if room < (wanted if asked.max_tokens else 1):
            raise too_long(
                asked.prompt_name,
                f"This model's maximum context length is {self.context:,} tokens, but the prompt "
                f"has {has:,} and the answer may have {wanted:,}. Shorten the prompt or reduce "
                f"{asked.limit_name}.",
            )
        return min(wanted, room)

    def start(self, asked: Asked, work: Sequence[Work]) -> Answering:
        """Start to generate; raises ApiError if the queue is full."""
        try:
            return Answering(
                self.session,
                work,
                self.settings.request_seconds,
                self.metrics.first_token.observe,
                is_stream=asked.is_stream,
            )
        except QueueFullError as error:
            raise busy(error.waiting) from None
        except InputError as error:
            raise too_long(asked.prompt_name, str(error)) from None
        except ClewError as error:
            logger.error("a request cannot be answered: %s", error)
            raise failed() from None

    def shape(self, asked: Asked) -> Shape:
        detector = self.session.detector
        return Shape(
            is_chat=asked.is_chat,
            is_only=asked.answers == 1,
            model=self.model_name,
            fingerprint=f"fp_{str(detector.model.get('fingerprint', ''))[:10]}",
            detector=detector.name,
            top_logprobs=asked.top_logprobs,
            token_text=lambda token: str(self.session.tokenizer.decode([token])),
        )

    def record(self, endpoint: str, work: Work, answer: "LiveAnswer") -> None:
        """Count an answer; log it only if that was asked for."""
        self.metrics.tokens.add(len(answer.tokens))
        self.metrics.count_answer(answer.risk, endpoint)
        if self.settings.log_requests:
            prompt = self.session.tokenizer.decode(work.request.prompt)
            logger.info("%s: prompt %r, answer %r, %s", endpoint, prompt, answer.text, answer.risk)


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """A prompt, the question in it, where its answer is cut, and how long that is if the request
    does not say."""

    tokens: list[int]
    question: str
    max_tokens: int
    cut: "Cut" = "none"


def _refuse_context(asked: Asked) -> None:
    if asked.context is not None:
        raise invalid(
            "context",
            "'context' is for a question in the detector's own prompt: one message of the user. "
            "Put the text in a message.",
        )
