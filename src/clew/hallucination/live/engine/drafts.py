"""An answer while it is generated: when it ends, and which of its tokens may be delivered."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from clew.hallucination.capture.dialogue import AnswerEnd, repetition_start
from clew.hallucination.live.engine.copies import RowCopy
from clew.hallucination.live.engine.requests import Ended, Finished, NewToken, Request
from clew.hallucination.live.engine.sampling import NextToken
from clew.hallucination.live.engine.text import GrowingText, Pieces, StopTexts


@dataclass(kw_only=True)
class _Token:
    """A token of the answer; `nodes` once it has passed through the model."""

    next: NextToken
    nodes: Float[Tensor, "layers node_dim"] | None = None


@dataclass(kw_only=True)
class Draft:
    """An unfinished answer. A token is first chosen, then passed through the model together with
    those of other answers, and then delivered."""

    request: Request
    end: AnswerEnd
    pieces: Pieces
    ended: Ended | None = None
    tokens: list[int] = field(default_factory=list)
    # How many tokens have been passed, of all that were chosen, and how many delivered.
    passed: int = 0
    delivered: int = 0

    def __post_init__(self) -> None:
        self._tokens: list[_Token] = []
        self._text = GrowingText(self.pieces)
        self._stops = StopTexts(self.request.stop)
        self._limit: int | None = None  # of the text, if a stop text was found

    @property
    def is_complete(self) -> bool:
        """The answer has ended, and all its tokens have been passed."""
        return self.ended is not None and self.passed >= len(self.tokens)

    @property
    def needs_new_record(self) -> bool:
        """Tokens were passed that are not in the answer, which was cut before them."""
        return self.passed > len(self.tokens)

    def pass_token(self, nodes: Float[Tensor, "layers node_dim"] | None) -> None:
        """The last token has passed through the model."""
        self._tokens[self.passed].nodes = nodes
        self.passed += 1

    def choose(self, chosen: NextToken) -> None:
        """The model's next token: it continues the answer, or ends it."""
        if self.ended is not None:  # the last token was passed only to be recorded
            return
        reason = self.end.before(self.tokens, chosen.id)
        if reason is not None or len(self.tokens) == self.request.max_new_tokens:
            self.ended = reason or "length"
            return
        self.tokens.append(chosen.id)
        self._tokens.append(_Token(next=chosen))
        self._text.add(chosen.id)
        if self.end.repeats(self.tokens) is not None:
            self._cut(repetition_start(self.tokens) or 0, "repetition")
        elif self.request.stop:
            self._look_for_stop()

    def deliver(self) -> Iterator[NewToken]:
        """The passed tokens whose text can no longer be part of a stop text."""
        safe = len(self._text.text)
        if self.ended is None:
            safe = self._stops.safe_length(self._text.text)
        while self.delivered < min(self.passed, len(self.tokens)):
            number = self.delivered
            if self.ended is None and self._text.ends[number] > safe:
                return
            self.delivered += 1
            token = self._tokens[number]
            # A part of what the whole pass gave, which it would keep until the answer ends.
            nodes, token.nodes = token.nodes, None
            yield NewToken(
                id=token.next.id,
                text=self._text_of(number),
                logprob=token.next.logprob,
                entropy=token.next.entropy,
                top=token.next.top,
                nodes=nodes,
            )

    def finish(self, ended: Ended, kept: RowCopy | None) -> Finished:
        chosen = [token.next for token in self._tokens[: len(self.tokens)]]
        return Finished(
            tokens=tuple(self.tokens),
            text=self._final_text(),
            ended=ended,
            logprobs=tuple(token.logprob for token in chosen),
            entropies=tuple(token.entropy for token in chosen),
            kept=kept,
        )

    def _look_for_stop(self) -> None:
        text, last = self._text, len(self.tokens) - 1
        limit = self._stops.find(text.text, text.start_of(last))
        if limit is not None:
            self._limit = limit
            # A token that has only part of its text before the stop text still belongs to it.
            keep = sum(text.start_of(number) < limit for number in range(len(self.tokens)))
            self._cut(keep, "stop")

    def _cut(self, keep: int, ended: Ended) -> None:
        del self.tokens[keep:]
        self.ended = ended

    def _text_of(self, number: int) -> str:
        """The text that a token adds; the last one adds what is left."""
        start = self._text.start_of(number)
        if self.ended is not None and number == len(self.tokens) - 1:
            return self._final_text()[start:]
        return self._text.text[start : self._text.ends[number]]

    def _final_text(self) -> str:
        return self.pieces.whole(self.tokens)[: self._limit]
