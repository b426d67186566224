"""An answer while it is generated: how its next token is chosen, when it ends, and which of its
tokens may be delivered."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.hallucination.llm.passes import Segment
from clew.hallucination.llm.prompts import AnswerEnd, Pieces
from clew.hallucination.llm.recording import Reading, RowCopy, to_device
from clew.hallucination.llm.requests import Ended, Finished, NewToken, Request, Sampling, Ticket

_BROKEN = "\ufffd"
# A character has at most four bytes, and a token at least one.
_MOST_TOKENS_OF_A_CHARACTER = 4
# In place of a token that has been chosen, but not read yet.
UNREAD = -1
_SEED = 0
# Cumulative sums are float64; this many rows at a time keep them small compared to the logits.
_DRAWN_ROWS = 128
# These most likely tokens nearly always hold the mass that `top_p` asks for; sorting all is slow.
_SORTED = 1024
# Less gives the same tokens, until the quotient is infinite.
_LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class NextToken:
    """The token that follows, its log-probability under the model, the entropy in nats, and the
    most likely alternatives with their log-probabilities."""

    id: int
    logprob: float
    entropy: float
    top: tuple[tuple[int, float], ...] = ()


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
        self._chosen: list[NextToken] = []
        # Of the tokens that have passed through the model.
        self._nodes: list[Float[Tensor, "layers node_dim"] | None] = []
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
        self._nodes.append(nodes)
        self.passed += 1

    def choose(self, chosen: NextToken) -> None:
        """The model's next token: it continues the answer, or ends it."""
        if self.ended is not None:  # the last token was passed only to be recorded
            return
        ignores_end = self.request.ignores_end
        reason = None if ignores_end else self.end.before(self.tokens, chosen.id)
        if reason is not None or len(self.tokens) == self.request.max_new_tokens:
            self.ended = reason or "length"
            return
        self.tokens.append(chosen.id)
        self._chosen.append(chosen)
        self._text.add(chosen.id)
        if not ignores_end and (keep := self.end.repeats(self.tokens)) is not None:
            self._cut(keep, "repetition")
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
            # A part of what the whole pass gave, which it would keep until the answer ends.
            nodes, self._nodes[number] = self._nodes[number], None
            chosen = self._chosen[number]
            yield NewToken(
                id=chosen.id,
                text=self._text_of(number),
                logprob=chosen.logprob,
                entropy=chosen.entropy,
                top=chosen.top,
                nodes=nodes,
            )

    def finish(self, ended: Ended, kept: RowCopy | None) -> Finished:
        chosen = self._chosen[: len(self.tokens)]
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


class Chooser:
    """The choices of one request: the next random number, and the tokens it has had."""

    def __init__(self, sampling: Sampling, max_new_tokens: int, top_logprobs: int) -> None:
        self.sampling, self.top_logprobs = sampling, top_logprobs
        self._is_penalized = bool(sampling.frequency_penalty or sampling.presence_penalty)
        # Whether the model's most likely token is the choice.
        self.is_greedy = sampling.temperature == 0 and not self._is_penalized
        if not self.is_greedy:
            seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
            # One more than there are tokens: the next one may say how the answer ended.
            self._numbers = (
                draw_numbers(f"live:{seed}", 1, max_new_tokens + 1)[0]
                if sampling.numbers is None
                else sampling.numbers
            )

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on all tokens before it, by more than their pass."""
        return self._is_penalized

    @property
    def is_plain(self) -> bool:
        """Whether it draws from the model's distribution at some temperature, and no other."""
        made = self.sampling
        is_cut = made.top_k is not None or made.top_p < 1 or self._is_penalized
        return not is_cut and made.temperature >= _LEAST_TEMPERATURE

    def number(self, position: int) -> float:
        return self._numbers[position] if position < len(self._numbers) else 0.0

    def filter(
        self, logits: Float[Tensor, " vocabulary"], so_far: Sequence[int]
    ) -> Float[Tensor, " vocabulary"]:
        """Logits to draw from: with the penalties and the temperature applied, and minus infinity
        for the tokens that are not allowed."""
        sampling = self.sampling
        if so_far and self._is_penalized:
            seen, counts = torch.tensor(so_far, device=logits.device).unique(return_counts=True)
            penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
            logits = logits.index_add(0, seen, -penalty.to(logits.dtype))
        if sampling.temperature == 0:
            return _keep_best(logits)
        logits = logits / max(sampling.temperature, _LEAST_TEMPERATURE)
        if sampling.top_k:
            logits = _keep_top_k(logits, sampling.top_k)
        return _keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits


class Asking(NamedTuple):
    """A request that gets its next token: the one at `position` of its answer, after the tokens
    `so_far` (which may lag behind; only penalties need them)."""

    chooser: Chooser
    position: int
    so_far: Sequence[int]


@dataclass(kw_only=True, eq=False)
class ActiveRequest:
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

    def take(self, most: int) -> "Scheduled | None":
        """What the next pass takes of it, at most that many tokens of a prompt; None if
        nothing."""
        return self._take_prompt(most) if self.to_pass else self._take_token()

    def _take_prompt(self, most: int) -> "Scheduled | None":
        if most < 1:
            return None
        if self.position < self.shared:
            most = min(most, self.shared - self.position)
        tokens, start = self.to_pass[:most], self.position
        del self.to_pass[:most]
        self.position += len(tokens)
        wants = not self.to_pass and not self.is_again
        segment = Segment(row=self.row, tokens=tokens, start=start, wants_logits=wants)
        return Scheduled(running=self, segment=segment, number=None)

    def _take_token(self) -> "Scheduled | None":
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
        return Scheduled(running=self, segment=segment, number=number)


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What one pass has taken of a running request: part of its prompt, or the token of that
    `number` of its answer."""

    running: ActiveRequest
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


class Chosen(NamedTuple):
    """The next token of each row, its log-probability, and the entropy in nats."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    entropies: Float[Tensor, " rows"]


class NextTokens:
    """The next tokens of some requests, on the device; they are read later, so that a GPU need not
    be waited for."""

    def __init__(
        self,
        chosen: Chosen,
        logits: Float[Tensor, "rows vocabulary"],
        asking: Sequence[Asking],
    ) -> None:
        """`chosen` are the most likely tokens of each row; those that are drawn replace them."""
        self._count, self.tokens = len(asking), chosen.tokens
        drawn = [row for row, asked in enumerate(asking) if not asked.chooser.is_greedy]
        if drawn:
            _draw(chosen, logits, drawn, asking)
        self._numbers = Reading(
            torch.stack([chosen.tokens.double(), chosen.logprobs, chosen.entropies])
        )
        self._tops = _most_likely(logits, asking)

    def read(self) -> list[NextToken]:
        ids, logprobs, entropies = self._numbers.get()[:, : self._count].tolist()
        tops = self._tops.read() if self._tops else {}
        found = enumerate(zip(ids, logprobs, entropies, strict=True))
        return [
            NextToken(int(token), logprob, entropy, tops.get(row, ()))
            for row, (token, logprob, entropy) in found
        ]


def _draw(
    chosen: Chosen,
    logits: Float[Tensor, "rows vocabulary"],
    drawn: list[int],
    asking: Sequence[Asking],
) -> None:
    asked, rows = [asking[row] for row in drawn], to_device(drawn, logits.device)
    numbers = [[float(one.chooser.number(one.position))] for one in asked]
    if all(one.chooser.is_plain for one in asked):
        temperatures = [[one.chooser.sampling.temperature] for one in asked]
        filtered = logits[rows].float() / to_device(temperatures, logits.device)
    else:
        some = zip(logits[rows].float(), asked, strict=True)
        filtered = torch.stack([one.chooser.filter(row, one.so_far) for row, one in some])
    tokens = draw_tokens(filtered, to_device(numbers, logits.device))
    chosen.tokens[rows] = tokens
    logprobs = logits[rows].float().log_softmax(-1)
    chosen.logprobs[rows] = logprobs.gather(1, tokens[:, None])[:, 0]


class _Tops:
    """The most likely tokens of the rows that ask for them."""

    def __init__(self, logits: Tensor, counts: dict[int, int]) -> None:
        self._counts = counts
        count = min(max(counts.values()), logits.shape[1])
        rows = logits[to_device(list(counts), logits.device)]
        best = rows.float().log_softmax(-1).topk(count, dim=-1)
        self._ids, self._values = Reading(best.indices), Reading(best.values)

    def read(self) -> dict[int, tuple[tuple[int, float], ...]]:
        found = zip(self._ids.get().tolist(), self._values.get().tolist(), strict=True)
        return {
            row: tuple(zip(ids, values, strict=True))[:count]
            for (row, count), (ids, values) in zip(self._counts.items(), found, strict=True)
        }


def _most_likely(logits: Tensor, asking: Sequence[Asking]) -> _Tops | None:
    asked = ((row, one.chooser.top_logprobs) for row, one in enumerate(asking))
    counts = {row: count for row, count in asked if count}
    return _Tops(logits, counts) if counts else None


def _keep_best(logits: Float[Tensor, " vocabulary"]) -> Float[Tensor, " vocabulary"]:
    return torch.full_like(logits, -torch.inf).index_fill(0, logits.argmax(-1, keepdim=True), 0.0)


def _keep_top_k(logits: Float[Tensor, " vocabulary"], k: int) -> Float[Tensor, " vocabulary"]:
    if k >= len(logits):
        return logits
    return logits.where(logits >= logits.topk(k).values[-1], -torch.inf)


def _keep_top_p(logits: Float[Tensor, " vocabulary"], p: float) -> Float[Tensor, " vocabulary"]:
    """The fewest most likely tokens whose probabilities add up to `p`, at least one."""
    if p == 0:
        return _keep_best(logits)
    probabilities = logits.softmax(-1)
    for count in (min(_SORTED, len(logits)), len(logits)):
        best = probabilities.topk(count)
        sums = best.values.cumsum(0)
        if float(sums[-1]) >= p:
            break
    kept = best.indices[sums - best.values < p]
    filtered = torch.full_like(logits, -torch.inf)
    filtered[kept] = logits[kept]
    return filtered


def choose_tokens(logits: Float[Tensor, "rows vocabulary"]) -> Chosen:
    """The most likely token of each row."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.max(-1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
    return Chosen(best.indices, best.values, entropy)


def draw_numbers(
    question_id: str, samples: int, tokens: int
) -> Float[np.ndarray, "samples tokens"]:
    """A question's random numbers in [0, 1), the same in every run on every machine."""
    digest = hashlib.sha256(f"{_SEED}:{question_id}".encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return random.random((samples, tokens), dtype=np.float32)


def draw_tokens(
    logits: Float[Tensor, "rows vocabulary"],
    numbers: Float[Tensor, "rows 1"],
    temperature: float = 1.0,
) -> Int[Tensor, " rows"]:
    """For each row, the token at which the cumulative probability exceeds its number."""
    tokens = []
    for part, number in zip(logits.split(_DRAWN_ROWS), numbers.split(_DRAWN_ROWS), strict=True):
        probabilities = (part.float() / temperature).softmax(-1)
        sums = probabilities.cumsum(-1, dtype=torch.float64)
        tokens.append(torch.searchsorted(sums, number * sums[:, -1:], right=True)[:, 0])
    return torch.cat(tokens).clamp(max=logits.shape[1] - 1)
