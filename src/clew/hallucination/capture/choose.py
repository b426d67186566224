"""Choose tokens, and say how sure the model was of them."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Chosen(NamedTuple):
    """The next token of each row, its log-probability, and the entropy in nats."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    entropies: Float[Tensor, " rows"]

    def to_lists(self) -> tuple[list[int], list[float], list[float]]:
        numbers = torch.stack([self.tokens.double(), self.logprobs, self.entropies]).tolist()
        return [int(token) for token in numbers[0]], numbers[1], numbers[2]


def choose_tokens(logits: Float[Tensor, "rows vocabulary"]) -> Chosen:
    """The likeliest token of each row."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.max(-1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
    return Chosen(best.indices, best.values, entropy)


def score_answers(
    groups: list[Float[Tensor, "rows keep vocabulary"]], answers: Sequence[Sequence[int]]
) -> list[tuple[list[float], list[float]]]:
    """Log-probabilities and entropies of given answers, which end at the last logits but one."""
    scores = []
    for row, answer in zip(chain.from_iterable(groups), answers, strict=True):
        count = len(answer)
        logprobs = row[len(row) - count - 1 : len(row) - 1].float().log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
        ids = torch.tensor(list(answer), dtype=torch.long, device=row.device)
        scores.append((logprobs.gather(1, ids[:, None])[:, 0].tolist(), entropy.tolist()))
    return scores
