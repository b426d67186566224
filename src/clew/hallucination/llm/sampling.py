"""Choose the next token of every row: the most likely one, or one that is drawn."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.hallucination.llm.recording import Reading, to_device
from clew.hallucination.llm.requests import Sampling

_SEED = 0
# Cumulative sums are float64; this many rows at a time keep them small compared to the logits.
_DRAWN_ROWS = 128
# These most likely tokens nearly always hold the mass that `top_p` asks for; sorting all is slow.
_SORTED = 1024
# Less gives the same tokens, until the quotient is infinite.
_LEAST_TEMPERATURE = 1e-6


class Chosen(NamedTuple):
    """The next token of each row, its log-probability, and the entropy in nats."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    entropies: Float[Tensor, " rows"]

    def to_lists(self) -> tuple[list[int], list[float], list[float]]:
        numbers = torch.stack([self.tokens.double(), self.logprobs, self.entropies]).tolist()
        return [int(token) for token in numbers[0]], numbers[1], numbers[2]


@dataclass(frozen=True)
class NextToken:
    """The token that follows, its log-probability under the model, the entropy in nats, and the
    most likely alternatives with their log-probabilities."""

    id: int
    logprob: float
    entropy: float
    top: tuple[tuple[int, float], ...] = ()


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
            self._numbers = draw_numbers(f"live:{seed}", 1, max_new_tokens + 1)[0]

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on all tokens before it, by more than their pass."""
        return self._is_penalized

    def number(self, position: int) -> np.float32:
        return self._numbers[position]

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
        self._count = len(asking)
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
    filtered = [
        one.chooser.filter(logits[row].float(), one.so_far)
        for row, one in zip(drawn, asked, strict=True)
    ]
    tokens = draw_tokens(torch.stack(filtered), to_device(numbers, logits.device))
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
