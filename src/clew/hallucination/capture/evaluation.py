"""Ask a model about the answer it has just given: how probable it finds that the answer is true,
and its states after either reply. Prompt and answer are passed once; each question about them is
the user's next turn behind them, the same tokens for every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clew.base.errors import InputError
from clew.hallucination.capture.batch import BatchModel, PaddedBatch
from clew.hallucination.capture.dialogue import format_chat
from clew.hallucination.capture.phrasings import Phrasing, SelfEvaluation
from clew.hallucination.capture.plan import BatchPlan, ExtraWork, make_batches
from clew.hallucination.traces.compact import to_float16
from clew.hallucination.traces.schema import CONTRAST_FALSE, CONTRAST_TRUE, P_TRUE, TraceShape

# Where a chat template puts the answer.
_ANSWER = "The answer is unknown."


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Two replies to a question: the tokens that both start with, and the next one of either."""

    lead: list[int]
    true: int
    false: int


@dataclass(frozen=True, kw_only=True)
class FollowUp:
    """The tokens between an answer and the reply to a phrasing, and the next token of either
    reply."""

    tokens: list[int]
    true: int
    false: int


def make_follow_up(tokenizer: Any, phrasing: Phrasing, *, chat: bool) -> FollowUp:
    """A phrasing in the model's chat format, or as the next question of a plain prompt. Raises
    InputError if the model cannot be asked."""
    text = _next_turn(tokenizer, phrasing.text) if chat else f"\nQ: {phrasing.text} A:"
    true, false = (f"{'' if chat else ' '}{one}" for one in (phrasing.true, phrasing.false))
    replies = find_replies(tokenizer, text, true, false)
    tokens = [*_encode(tokenizer, text), *replies.lead]
    return FollowUp(tokens=tokens, true=replies.true, false=replies.false)


def find_replies(tokenizer: Any, before: str, true: str, false: str) -> Replies:
    """The tokens of two replies to the text before them. What both start with, such as a space, is
    passed before the model chooses. Raises InputError if the tokenizer does not tell them apart.
    """
    tokens = _encode(tokenizer, before)
    replies = [_encode_reply(tokenizer, before, tokens, one) for one in (true, false)]
    for place, (one, other) in enumerate(zip(*replies, strict=False)):
        if one != other:
            return Replies(lead=replies[0][:place], true=one, false=other)
    raise InputError(
        f'this model\'s tokenizer does not tell the replies "{true.strip()}" and '
        f'"{false.strip()}" apart, so the model cannot be asked about its answers.'
    )


def _next_turn(tokenizer: Any, text: str) -> str:
    """What the chat template puts between an answer and the reply to the user's next message."""
    turns = (("user", text), ("assistant", _ANSWER), ("user", text))
    whole = format_chat(tokenizer, [{"role": role, "content": content} for role, content in turns])
    _, answer, rest = whole.rpartition(_ANSWER)
    if not answer:
        raise InputError(
            "this model's chat template drops earlier answers, so the model cannot be asked about "
            "them. Omit `self_evaluation`, or use `chat=False`."
        )
    return rest


def _encode_reply(tokenizer: Any, before: str, tokens: list[int], reply: str) -> list[int]:
    joined = _encode(tokenizer, f"{before}{reply}")
    # A tokenizer may merge the reply with what comes before it; generation cannot.
    is_split = joined[: len(tokens)] == tokens
    return joined[len(tokens) :] if is_split else _encode(tokenizer, reply)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class _ChosenLayers:
    """A listener that keeps the last token's state in some layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = frozenset(layers)
        self.states: list[Tensor] = []

    def on_hidden(self, layer: int, states: Float[Tensor, "rows tokens dim"]) -> None:
        if layer in self._layers:
            self.states.append(to_float16(states[:, -1]))

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """Not asked for."""


class Evaluator:
    """Asks a model about its answers. `room` is the most tokens that it passes behind an answer."""

    def __init__(self, evaluation: SelfEvaluation, tokenizer: Any, *, chat: bool) -> None:
        """Raises InputError if the model cannot be asked."""
        self.evaluation = evaluation
        self._follow_ups = [
            make_follow_up(tokenizer, one, chat=chat) for one in evaluation.phrasings
        ]
        self.room = max(len(one.tokens) for one in self._follow_ups) + 1

    def extra_work(self, shape: TraceShape) -> ExtraWork:
        """What evaluating one answer takes."""
        return ExtraWork(
            repeats=1,
            tokens=sum(len(one.tokens) for one in self._follow_ups) + 2,
            bytes=4 * len(self._follow_ups) + 4 * len(self.evaluation.layers) * shape.dim,
        )

    @torch.inference_mode()
    def evaluate(
        self, model: BatchModel, sequences: Sequence[Sequence[int]], plan: BatchPlan
    ) -> dict[str, np.ndarray]:
        """The columns of self-evaluation for prompts with their answers (token ids), one row per
        answer, in batches no larger than planned."""
        batches = make_batches([len(sequence) for sequence in sequences], plan, self.room)
        parts = [self._pass(model, [sequences[row] for row in rows]) for rows in batches]
        order = np.argsort([row for rows in batches for row in rows])
        return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}

    def _pass(self, model: BatchModel, sequences: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        batch = PaddedBatch(model, sequences, room=self.room)
        batch.pass_prompts(keep=1)
        # The first one comes last: its replies are passed behind it.
        found = [self._ask(batch, one) for one in reversed(self._follow_ups)]
        return {P_TRUE: torch.stack(found[::-1], dim=1).cpu().numpy(), **self._contrast(batch)}

    def _ask(self, batch: PaddedBatch, follow_up: FollowUp) -> Float[Tensor, " rows"]:
        """The probability of the reply that an answer is true, of the two replies."""
        logits = batch.pass_behind(follow_up.tokens)
        return (logits[:, follow_up.true].float() - logits[:, follow_up.false].float()).sigmoid()

    def _contrast(self, batch: PaddedBatch) -> dict[str, np.ndarray]:
        """The states after both replies to the first phrasing, which was passed last."""
        first, states = self._follow_ups[0], {}
        for name, reply in ((CONTRAST_TRUE, first.true), (CONTRAST_FALSE, first.false)):
            listener = _ChosenLayers(self.evaluation.layers)
            with batch.model.observer.listen(listener, attention=False):
                batch.pass_behind([reply], after=len(first.tokens))
            states[name] = torch.stack(listener.states, dim=1).cpu().numpy()
        return states
