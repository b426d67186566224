"""Compare a batched capture with plain passes, one sequence at a time, before a run starts. Errors
in padding, positions and caches are easy to make and silent; this check detects them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clew.base.errors import InputError
from clew.base.memory import is_out_of_memory
from clew.base.progress import (
    Note,
    Reporter,
    StepStarted,
    WorkAdvanced,
    ignore_event,
    report_work,
)
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.observe import forward_once

# Largest relative difference, by norm and layer, that rounding can explain.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}
# The kernels for 4-bit and 8-bit weights round depending on the batch's values.
_QUANTIZED_TOLERANCE = 0.3


class _LastStates:
    """A listener that keeps the last token's state and the diagonal of every layer."""

    def __init__(self) -> None:
        self.last: list[Tensor] = []
        self.diagonal: list[Tensor] = []

    def on_hidden(self, _layer: int, states: Tensor) -> None:
        self.last.append(states[0, -1].float())

    def on_attention(self, _layer: int, weights: Tensor) -> None:
        self.diagonal.append(weights[0].diagonal(dim1=-2, dim2=-1).float())


def tolerance(decoder: Decoder) -> float:
    """The tolerance for rounding for this model."""
    if getattr(decoder.model, "is_quantized", False):
        return _QUANTIZED_TOLERANCE
    return _TOLERANCE[decoder.dtype]


def batching_error(
    decoder: Decoder, prompts: Sequence[Sequence[int]], reporter: Reporter = ignore_event
) -> float:
    """The largest relative difference between the batch's record and plain passes."""
    with decoder.batch_model.watched(lambda tokens: reporter(WorkAdvanced(count=tokens))):
        answers, reduced = decoder.answer(prompts)
    worst, start = 0.0, 0
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tokens = [*prompt, *answer.tokens]
        plain = _LastStates()
        forward_once(decoder.model, decoder.observer, plain, tokens)
        reporter(WorkAdvanced(count=len(tokens)))
        stop = start + decoder.shape.layers * decoder.shape.heads * len(tokens)
        mine = reduced.attention_log_diagonal[start:stop].exp()
        diagonal = mine.reshape(decoder.shape.layers, decoder.shape.heads, len(tokens))
        start = stop
        last = reduced.last_hidden[row].float()
        worst = max(worst, _difference(torch.stack(plain.last), last))
        worst = max(worst, _difference(torch.stack(plain.diagonal), diagonal))
    return worst


def pick_prompts(prompts: Sequence[Sequence[int]], count: int = 3) -> list[Sequence[int]]:
    """A few prompts of different lengths, none very long."""
    by_length = sorted((p for p in prompts if len(p) <= 512), key=len) or [min(prompts, key=len)]
    return [by_length[i * (len(by_length) - 1) // max(1, count - 1)] for i in range(count)]


def _difference(expected: Tensor, found: Tensor) -> float:
    """Norm of the difference divided by the norm of the expected values, of the worst layer."""
    gap = (expected - found).flatten(1).norm(dim=1)
    scale = expected.flatten(1).norm(dim=1).clamp(min=1e-6)
    value = float((gap / scale).max())
    return value if value == value else float("inf")


def settle_decoder(
    make: Callable[[bool], Decoder],
    prompts: Sequence[Sequence[int]],
    reporter: Reporter,
    *,
    name: str,
) -> tuple[Decoder, bool]:
    """A decoder whose batches equal plain passes, and whether it requires all prompts of a batch to
    have the same length. `make` is called with whether the shared prefix may be passed only once.
    Raises InputError for a model (`name`) whose values are wrong either way.
    """
    some = pick_prompts(prompts)
    decoder = make(True)
    limit = tolerance(decoder)
    with report_work(reporter, _describe_check(decoder, some)):
        error = _error_with_graphs(decoder, some, reporter)
    if error > limit and decoder.batch_model.graphs:
        reporter(
            Note(
                "this model's steps cannot be replayed as a CUDA graph: continuing without it, "
                "which is slower"
            )
        )
        decoder.batch_model.graphs = False
        error = batching_error(decoder, some)
    if error <= limit:
        reporter(
            Note(
                "check passed: batched capture matches single-prompt passes (difference "
                f"{error:.1e})"
            )
        )
        return decoder, False
    decoder = make(False)
    alone = max(batching_error(decoder, [prompt]) for prompt in some)
    if alone > limit:
        raise InputError(
            f"{name} cannot be captured accurately: even with one prompt at a time, its hidden "
            f"states differ from a plain forward pass by a relative error of {alone:.1e}. Try "
            '`dtype="float32"`.'
        )
    reporter(
        Note(
            f"this model's values change with padding (by {error:.1e}): only prompts of equal "
            "length are batched together, which is slower"
        )
    )
    return decoder, True


def _describe_check(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> StepStarted:
    """The step, with the tokens that pass once in the batch and once alone."""
    longest, prefix = max(map(len, prompts)), len(decoder.batch_model.prefix.tokens)
    tokens = 2 * len(prompts) * (longest + decoder.max_new_tokens) - len(prompts) * prefix
    return StepStarted(name="comparing batched with single-prompt passes", parts=tokens)


def _error_with_graphs(
    decoder: Decoder, prompts: Sequence[Sequence[int]], reporter: Reporter
) -> float:
    """Infinite if the model's steps cannot be captured at all."""
    try:
        return batching_error(decoder, prompts, reporter)
    except RuntimeError as error:
        if not decoder.batch_model.graphs or is_out_of_memory(error):
            raise
        return float("inf")
