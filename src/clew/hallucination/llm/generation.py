"""A request while it is answered: what the next pass takes of it, how its next token is chosen,
when its answer ends, and which of its tokens may be delivered."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.hallucination.llm.packing import Segment, to_device
from clew.hallucination.llm.prompts import AnswerEnd, Pieces
from clew.hallucination.llm.recording import Reading, RowCopy
from clew.hallucination.llm.requests import Ended, Finished, Request, Ticket, Token

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
# Of a thread, in the cache of its core.
_CACHED_VALUES = 1 << 16
# Less gives the same tokens, until the quotient is infinite.
_LEAST_TEMPERATURE = 1e-6


@dataclass(kw_only=True, eq=False)
class ActiveRequest:
    """A request that has a row. A token of its answer is first chosen, then passed through the
    model together with those of other answers, and then delivered. `to_pass` are the tokens of its
    prompt that are still to be passed, `position` is where the next token goes, and `launched` is
    how many tokens of its answer have been passed, or are being passed."""

    ticket: Ticket
    end: AnswerEnd
    pieces: Pieces
    row: int
    to_pass: list[int] = field(default_factory=list)
    position: int = 0
    launched: int = 0
    # Where the beginning ends that is kept for other prompts; 0 if none is.
    shared: int = 0
    # The answer is complete, and is passed once more, since tokens after it had been recorded.
    is_again: bool = False
    has_left: bool = False
    ended: Ended | None = None
    tokens: list[int] = field(default_factory=list)
    # How many tokens have been passed, of all that were chosen, and how many delivered.
    passed: int = 0
    delivered: int = 0

    def __post_init__(self) -> None:
        self.request: Request = self.ticket.request
        self.chooser = Chooser(self.request)
        self._chosen: list[Token] = []
        # Of the tokens that have passed through the model.
        self._nodes: list[Float[Tensor, "layers node_dim"] | None] = []
        self._text = GrowingText(self.pieces)
        self._stops = StopTexts(self.request.stop)
        self._limit: int | None = None  # of the text, if a stop text was found

    @property
    def length(self) -> int:
        """Tokens in its row once its prompt has passed."""
        return self.position + len(self.to_pass)

    @property
    def is_complete(self) -> bool:
        """The answer has ended, and all its tokens have been passed."""
        return self.ended is not None and self.passed >= len(self.tokens)

    @property
    def needs_new_record(self) -> bool:
        """Tokens were passed that are not in the answer, which was cut before them."""
        return self.passed > len(self.tokens)

    def take(self, most: int) -> "Scheduled | None":
        """What the next pass takes of it, at most that many tokens of a prompt; None if
        nothing."""
        return self._take_prompt(most) if self.to_pass else self._take_token()

    def _take_prompt(self, most: int) -> "Scheduled | None":
        if most < 1:
            return None
        if self.position < self.shared:
            most = min(most, self.shared - self.position)
        tokens = self.to_pass[:most]
        del self.to_pass[:most]
        return self._schedule(tokens, None, not self.to_pass and not self.is_again)

    def _take_token(self) -> "Scheduled | None":
        """The next token of the answer, unless it may not have one."""
        number = self.launched
        is_known = number < len(self.tokens)
        if not is_known and (self.ended or number == self.request.max_new_tokens):
            return None
        self.launched += 1
        token = self.tokens[number] if is_known else UNREAD
        return self._schedule([token], number, self.ended is None)

    def _schedule(self, tokens: list[int], number: int | None, wants_logits: bool) -> "Scheduled":
        start, self.position = self.position, self.position + len(tokens)
        return Scheduled(
            row=self.row,
            tokens=tokens,
            start=start,
            wants_logits=wants_logits,
            running=self,
            number=number,
        )

    def pass_token(self, nodes: Float[Tensor, "layers node_dim"] | None) -> None:
        """The last token has passed through the model."""
        self._nodes.append(nodes)
        self.passed += 1

    def choose(self, chosen: Token) -> None:
        """The model's next token: it continues the answer, or ends it."""
        if self.ended is not None:  # the last token was passed only to be recorded
            return
        ignores_end = self.request.ignores_end
        reason = None if ignores_end else self.end.before(self.tokens, chosen.id)
        if reason is not None or len(self.tokens) == self.request.max_new_tokens:
            self.ended = reason or "length"
            return
        self.tokens.append(chosen.id)
        self.chooser.accept(chosen.id)
        self._chosen.append(chosen)
        self._text.add(chosen.id)
        if not ignores_end and (keep := self.end.repeats(self.tokens)) is not None:
            self._cut(keep, "repetition")
        elif self.request.stop:
            self._look_for_stop()
        if self.ended is None and self.chooser.is_complete:
            self.ended = "end"

    def deliver(self) -> Iterator[Token]:
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
            yield replace(self._chosen[number], text=self._text_of(number), nodes=nodes)

    def finish(self, ended: Ended, record: RowCopy | None) -> Finished:
        chosen = self._chosen[: len(self.tokens)]
        return Finished(
            tokens=tuple(self.tokens),
            text=self._final_text(),
            ended=ended,
            logprobs=tuple(token.logprob for token in chosen),
            entropies=tuple(token.entropy for token in chosen),
            record=record,
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


@dataclass(frozen=True, kw_only=True)
class Scheduled(Segment):
    """What one pass has taken of a running request: part of its prompt, or the token of that
    `number` of its answer."""

    running: ActiveRequest
    number: int | None

    @property
    def is_alive(self) -> bool:
        """Whether it is part of a request that still runs, as far as that is known."""
        running = self.running
        if running.has_left or self.number is None:
            return not running.has_left
        return not running.is_again and self.number < len(running.tokens)

    @property
    def completes_record(self) -> bool:
        """Whether an answer that is passed once more has been passed."""
        running = self.running
        whole = len(running.request.prompt) + len(running.tokens)
        return running.is_again and self.start + len(self.tokens) == whole

    def give_back(self) -> None:
        """The pass has failed: another one takes it again."""
        self.running.position -= len(self.tokens)
        if self.number is None:
            self.running.to_pass[:0] = self.tokens
        else:
            self.running.launched -= 1


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
    """The choices of one request: the next random number, and what may follow the tokens so far."""

    def __init__(self, request: Request) -> None:
        sampling, most = request.sampling, request.max_new_tokens
        self.sampling = sampling
        self._constraint = None if request.grammar is None else request.grammar.start()
        # Whether the choice depends on all tokens before it, by more than their pass.
        self.needs_history = bool(
            sampling.frequency_penalty or sampling.presence_penalty or self._constraint
        )
        # Whether the model's most likely token is the choice.
        self.is_greedy = sampling.temperature == 0 and not self.needs_history
        if not self.is_greedy:
            seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
            # One more than there are tokens: the next one may say how the answer ended.
            self._numbers = (
                draw_numbers(f"live:{seed}", 1, most + 1)[0]
                if sampling.numbers is None
                else sampling.numbers
            )

    @property
    def is_plain(self) -> bool:
        """Whether it draws from the model's distribution at some temperature, and no other."""
        made = self.sampling
        is_cut = made.top_k is not None or made.top_p < 1 or self.needs_history
        return not is_cut and made.temperature >= _LEAST_TEMPERATURE

    @property
    def problem(self) -> str | None:
        """Why the next token cannot be chosen."""
        return None if self._constraint is None else self._constraint.problem

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._constraint is not None and self._constraint.is_complete

    def accept(self, token: int) -> None:
        if self._constraint is not None:
            self._constraint.accept(token)

    def number(self, position: int) -> float:
        return self._numbers[position] if position < len(self._numbers) else 0.0

    def filter(
        self, logits: Float[Tensor, " vocabulary"], so_far: Sequence[int]
    ) -> Float[Tensor, " vocabulary"]:
        """Logits to draw from: with the penalties and the temperature applied, and minus infinity
        for the tokens that are not allowed."""
        sampling = self.sampling
        if self._constraint is not None:
            logits = self._constraint.filter(logits)
        if so_far and (sampling.frequency_penalty or sampling.presence_penalty):
            seen, counts = torch.tensor(so_far, device=logits.device).unique(return_counts=True)
            penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
            logits = logits.index_add(0, seen, -penalty.to(logits.dtype))
        if sampling.temperature == 0:
            return _keep_best(logits)
        logits = logits / max(sampling.temperature, _LEAST_TEMPERATURE)
        if sampling.top_k:
            logits = _keep_top_k(logits, sampling.top_k)
        return _keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits


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
        requests: Sequence[ActiveRequest | None],
    ) -> None:
        """`chosen` are the most likely tokens of each row; those that are drawn replace them. A row
        without a request is one that nobody asks for."""
        self._count, self.tokens = len(requests), chosen.tokens
        some = [(row, one) for row, one in enumerate(requests) if one is not None]
        self.drawn = {row: one for row, one in some if not one.chooser.is_greedy}
        if self.drawn:
            _draw(chosen, logits, self.drawn)
        self._numbers = Reading(
            torch.stack([chosen.tokens.double(), chosen.logprobs, chosen.entropies])
        )
        # How many of the most likely tokens are asked for, by row.
        self._tops = {row: count for row, one in some if (count := one.request.top_logprobs)}
        if self._tops:
            most = min(max(self._tops.values()), logits.shape[1])
            rows = logits[to_device(list(self._tops), logits.device)]
            best = rows.float().log_softmax(-1).topk(most, dim=-1)
            self._best = Reading(best.indices), Reading(best.values)

    def read(self) -> list[Token]:
        ids, logprobs, entropies = self._numbers.get()[:, : self._count].tolist()
        found = enumerate(zip(ids, logprobs, entropies, strict=True))
        tops = dict(self._read_tops()) if self._tops else {}
        return [
            Token(id=int(token), logprob=logprob, entropy=entropy, top=tops.get(row, ()))
            for row, (token, logprob, entropy) in found
        ]

    def _read_tops(self) -> Iterator[tuple[int, tuple[tuple[int, float], ...]]]:
        read = zip(*(best.get().tolist() for best in self._best), strict=True)
        for (row, count), (ids, values) in zip(self._tops.items(), read, strict=True):
            yield row, tuple(zip(ids, values, strict=True))[:count]


def _draw(
    chosen: Chosen,
    logits: Float[Tensor, "rows vocabulary"],
    drawn: dict[int, ActiveRequest],
) -> None:
    requests, rows = [*drawn.values()], to_device([*drawn], logits.device)
    numbers = [[float(one.chooser.number(one.launched))] for one in requests]
    if all(one.chooser.is_plain for one in requests):
        temperatures = [[one.chooser.sampling.temperature] for one in requests]
        filtered = logits[rows].float() / to_device(temperatures, logits.device)
    else:
        some = zip(logits[rows].float(), requests, strict=True)
        filtered = torch.stack([one.chooser.filter(row, one.tokens) for row, one in some])
    tokens = draw_tokens(filtered, to_device(numbers, logits.device))
    chosen.tokens[rows] = tokens
    logprobs = logits[rows].float().log_softmax(-1)
    chosen.logprobs[rows] = logprobs.gather(1, tokens[:, None])[:, 0]


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
    parts = [_choose(part) for part in split_rows(logits)]
    return parts[0] if len(parts) == 1 else Chosen(*map(torch.cat, zip(*parts, strict=True)))


def _choose(logits: Float[Tensor, "rows vocabulary"]) -> Chosen:
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.max(-1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
    return Chosen(best.indices, best.values, entropy)


def split_rows(
    values: Float[Tensor, "rows vocabulary"], most: int | None = None
) -> tuple[Tensor, ...]:
    """On a CPU, a few rows per thread at a time: they stay in the caches from one operation to the
    next, which take half as long. On a GPU, all of them, or `most` at a time."""
    if not values.is_cpu:
        return values.split(most or max(1, len(values)))
    return values.split(torch.get_num_threads() * max(1, _CACHED_VALUES // values.shape[1]))


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
