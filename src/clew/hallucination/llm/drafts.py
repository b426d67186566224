"""An answer while it is generated: when it ends, and which of its tokens may be delivered."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from clew.hallucination.llm.passes import Segment
from clew.hallucination.llm.prompts import AnswerEnd, repetition_start
from clew.hallucination.llm.recording import RowCopy
from clew.hallucination.llm.requests import Ended, Finished, NewToken, Request, Ticket
from clew.hallucination.llm.sampling import Asking, Chooser, NextToken


@dataclass(kw_only=True)
class _Token:
    """A token of the answer; `nodes` once it has passed through the model."""

    next: NextToken
    nodes: Float[Tensor, "layers node_dim"] | None = None


class Pieces:
    """The text that tokens add to a text, kept per token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_text = tokenizer.decode(self._anchor)
        self._known: dict[int, str] = {}

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of a whole answer."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def added(self, tokens: Sequence[int]) -> str:
        """What tokens add in the middle of a text, leading space included."""
        if len(tokens) > 1:
            return self._decode(tokens)
        if tokens[0] not in self._known:
            self._known[tokens[0]] = self._decode(tokens)
        return self._known[tokens[0]]

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode([*self._anchor, *tokens], skip_special_tokens=True)
        return str(text[len(self._anchor_text) :])


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


_BROKEN = "\ufffd"
# A character has at most four bytes, and a token at least one.
_MOST_TOKENS_OF_A_CHARACTER = 4


class GrowingText:
    """The text of an answer, token by token. A character of several tokens is added with its last
    one. `ends[i]` is the length of the text after token i."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending: list[int] = []
        self.text = ""
        self.ends: list[int] = []

    def add(self, token: int) -> None:
        self._pending.append(token)
        if self.text:
            piece = self._pieces.added(self._pending)
        else:  # some tokenizers drop the space that a text starts with
            piece = self._pieces.whole(self._pending)
        is_whole = not piece.endswith(_BROKEN)
        if is_whole or len(self._pending) >= _MOST_TOKENS_OF_A_CHARACTER:
            self.text += piece
            self._pending.clear()
        self.ends.append(len(self.text))

    def start_of(self, token: int) -> int:
        """Where the text of a token starts."""
        return self.ends[token - 1] if token else 0


class StopTexts:
    """Texts that end an answer."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in texts if text]
        self._longest = max(map(len, self._texts), default=0)
        self._firsts = {text[0] for text in self._texts}

    def find(self, text: str, known: int) -> int | None:
        """Where the first of them starts; none does in the first `known` characters alone."""
        start = max(0, known - self._longest + 1)
        found = [at for stop in self._texts if (at := text.find(stop, start)) >= 0]
        return min(found, default=None)

    def safe_length(self, text: str) -> int:
        """How much of the text cannot be the beginning of one of them."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts and self._may_begin(text[start:]):
                return start
        return len(text)

    def _may_begin(self, rest: str) -> bool:
        return any(stop.startswith(rest) for stop in self._texts)


# In place of a token that has been chosen, but not read yet.
UNREAD = -1


@dataclass(kw_only=True, eq=False)
class Running:
    """A request that has a row. `to_pass` are the tokens of its prompt that are still to be passed,
    `position` is where the next token goes, and `launched` is how many tokens of its answer have
    been passed, or are being passed."""

    ticket: Ticket
    draft: Draft
    chooser: Chooser
    row: int
    to_pass: list[int]
    position: int = 0
    launched: int = 0
    # Where the beginning ends that is kept for other prompts; 0 if none is.
    shared: int = 0
    # The answer is complete, and is passed once more, since tokens after it had been recorded.
    is_again: bool = False
    has_left: bool = False

    @property
    def request(self) -> Request:
        return self.ticket.request

    @property
    def length(self) -> int:
        """Tokens in its row once its prompt has passed."""
        return self.position + len(self.to_pass)

    @property
    def asking(self) -> Asking:
        """For the token after those that were launched."""
        return Asking(self.chooser, self.launched, self.draft.tokens)

    def take(self, most: int) -> "Taken | None":
        """What the next pass takes of it, at most that many tokens of a prompt; None if
        nothing."""
        return self._take_prompt(most) if self.to_pass else self._take_token()

    def _take_prompt(self, most: int) -> "Taken | None":
        if most < 1:
            return None
        if self.position < self.shared:
            most = min(most, self.shared - self.position)
        tokens, start = self.to_pass[:most], self.position
        del self.to_pass[:most]
        self.position += len(tokens)
        wants = not self.to_pass and not self.is_again
        segment = Segment(row=self.row, tokens=tokens, start=start, wants_logits=wants)
        return Taken(running=self, segment=segment, number=None)

    def _take_token(self) -> "Taken | None":
        """The next token of the answer, unless it may not have one."""
        draft, number = self.draft, self.launched
        is_known = number < len(draft.tokens)
        if not is_known and (draft.ended or number == self.request.max_new_tokens):
            return None
        token = draft.tokens[number] if is_known else UNREAD
        self.launched += 1
        self.position += 1
        wants = draft.ended is None
        segment = Segment(row=self.row, tokens=[token], start=self.position - 1, wants_logits=wants)
        return Taken(running=self, segment=segment, number=number)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What one pass has taken of a running request: part of its prompt, or the token of that
    `number` of its answer."""

    running: Running
    segment: Segment
    number: int | None

    @property
    def is_alive(self) -> bool:
        """Whether it is part of a request that still runs, as far as that is known."""
        running = self.running
        if running.has_left or self.number is None:
            return not running.has_left
        return not running.is_again and self.number < len(running.draft.tokens)

    @property
    def completes_record(self) -> bool:
        """Whether an answer that is passed once more has been passed."""
        running, end = self.running, self.segment.start + len(self.segment.tokens)
        whole = len(running.request.prompt) + len(running.draft.tokens)
        return running.is_again and end == whole

    def give_back(self) -> None:
        """The pass has failed: another one takes it again."""
        running, count = self.running, len(self.segment.tokens)
        running.position -= count
        if self.number is None:
            running.to_pass[:0] = self.segment.tokens
        else:
            running.launched -= 1
