"""The definitions, in their slow and obvious form, on a plain unbatched pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class PlainPass:
    """What `output_hidden_states` and `output_attentions` return for one sequence."""

    hidden: np.ndarray
    attention: np.ndarray
    logprobs: np.ndarray


def pass_plainly(model: Any, tokens: list[int]) -> PlainPass:
    with torch.no_grad():
        out = model(
            torch.tensor([tokens]),
            output_hidden_states=True,
            output_attentions=True,
            use_cache=False,
        )
    return PlainPass(
        hidden=np.stack([state[0].numpy() for state in out.hidden_states[1:]]),
        attention=np.stack([weights[0].numpy() for weights in out.attentions]),
        logprobs=out.logits[0].log_softmax(-1).numpy(),
    )


def laplacian_diagonal(attention: np.ndarray) -> np.ndarray:
    """d_i - A_ii with d_i = (sum over u >= i of A_ui) / (T - i)."""
    layers, heads, tokens, _ = attention.shape
    result = np.zeros((layers, heads, tokens))
    for i in range(tokens):
        degree = attention[:, :, i:, i].sum(-1) / (tokens - i)
        result[:, :, i] = degree - attention[:, :, i, i]
    return result


def answer_mean(hidden: np.ndarray, prompt_length: int) -> np.ndarray:
    """Mean over answer tokens of every layer's state; zeros if the answer is empty."""
    answer = hidden[:, prompt_length:]
    return answer.mean(1) if answer.shape[1] else np.zeros_like(hidden[:, 0])


def lookback(attention: np.ndarray, prompt_length: int) -> np.ndarray:
    """Mean over answer tokens of a / (a + b): mean attention on the context and on the answer."""
    tokens = attention.shape[-1]
    ratios = []
    for row in range(prompt_length, tokens):
        context = attention[:, :, row, :prompt_length].mean(-1)
        generated = attention[:, :, row, prompt_length : row + 1].mean(-1)
        ratios.append(context / (context + generated))
    if not ratios:
        return np.zeros(attention.shape[:2])
    return np.mean(ratios, axis=0)
