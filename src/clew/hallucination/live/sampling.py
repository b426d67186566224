"""Choose the next token of every row: the most likely one, or one that is drawn."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.hallucination.capture.decode import choose_tokens
from clew.hallucination.capture.sample import draw_numbers, draw_tokens
from clew.hallucination.live.requests import Sampling

# These most likely tokens nearly always hold the mass that `top_p` asks for; sorting all is slow.
_SORTED = 1024


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
        self.is_greedy = sampling.temperature == 0
        if not self.is_greedy:
            seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
            # One more than there are tokens: the next one may say how the answer ended.
            self._numbers = draw_numbers(f"live:{seed}", 1, max_new_tokens + 1)[0]

    def number(self, position: int) -> np.float32:
        return self._numbers[position]

    def filter(
        self, logits: Float[Tensor, " vocabulary"], so_far: Sequence[int]
    ) -> Float[Tensor, " vocabulary"]:
        """Logits to draw from: with the penalties and the temperature applied, and minus infinity
        for the tokens that are not allowed."""
        sampling = self.sampling
        if so_far and (sampling.frequency_penalty or sampling.presence_penalty):
            seen, counts = torch.tensor(so_far, device=logits.device).unique(return_counts=True)
            penalty = sampling.frequency_penalty * counts + sampling.presence_penalty
            logits = logits.index_add(0, seen, -penalty.to(logits.dtype))
        logits = logits / sampling.temperature
        if sampling.top_k:
            logits = _keep_top_k(logits, sampling.top_k)
        return _keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits


def choose_next(
    logits: Float[Tensor, "rows vocabulary"],
    choosers: Sequence[Chooser],
    so_far: Sequence[Sequence[int]],
) -> list[NextToken]:
    """The next token of each row, which has had the tokens `so_far`."""
    chosen = choose_tokens(logits)
    drawn = [row for row, chooser in enumerate(choosers) if not chooser.is_greedy]
    if drawn:
        numbers = [[choosers[row].number(len(so_far[row]))] for row in drawn]
        filtered = [choosers[row].filter(logits[row].float(), so_far[row]) for row in drawn]
        tokens = draw_tokens(
            torch.stack(filtered), torch.from_numpy(np.array(numbers)).to(logits.device)
        )
        chosen.tokens[drawn] = tokens
        logprobs = logits[drawn].float().log_softmax(-1)
        chosen.logprobs[drawn] = logprobs.gather(1, tokens[:, None])[:, 0]
    tops = _most_likely(logits, choosers)
    return [
        NextToken(token, logprob, entropy, tops.get(row, ()))
        for row, (token, logprob, entropy) in enumerate(zip(*chosen.to_lists(), strict=True))
    ]


def _most_likely(
    logits: Float[Tensor, "rows vocabulary"], choosers: Sequence[Chooser]
) -> dict[int, tuple[tuple[int, float], ...]]:
    asking = [row for row, chooser in enumerate(choosers) if chooser.top_logprobs]
    if not asking:
        return {}
    count = min(max(choosers[row].top_logprobs for row in asking), logits.shape[1])
    best = logits[asking].float().log_softmax(-1).topk(count, dim=-1)
    found = zip(asking, best.indices.tolist(), best.values.tolist(), strict=True)
    return {
        row: tuple(zip(ids, values, strict=True))[: choosers[row].top_logprobs]
        for row, ids, values in found
    }


def _keep_top_k(logits: Float[Tensor, " vocabulary"], k: int) -> Float[Tensor, " vocabulary"]:
    if k >= len(logits):
        return logits
    return logits.where(logits >= logits.topk(k).values[-1], -torch.inf)


def _keep_top_p(logits: Float[Tensor, " vocabulary"], p: float) -> Float[Tensor, " vocabulary"]:
    """The fewest most likely tokens whose probabilities add up to `p`, at least one."""
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
