"""Draw answers in addition to the recorded one, as text only, for measures such as semantic
entropy. Every random number depends only on the question's id, the draw and the token's position,
so that neither batching nor an interrupted run changes what is drawn.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clew.hallucination.capture.batch import PaddedBatch
from clew.hallucination.capture.decode import Decoder
from clew.hallucination.capture.plan import BatchPlan

_SEED = 0
# Cumulative sums are float64; this many rows at a time keep them small compared to the logits.
_DRAWN_ROWS = 128


class Drawn(NamedTuple):
    """The next token of each row."""

    tokens: Int[Tensor, " rows"]


class Sampler:
    """Draws `count` answers per question from the model's own distribution."""

    def __init__(self, decoder: Decoder, *, count: int, temperature: float) -> None:
        self.decoder, self.count, self.temperature = decoder, count, temperature

    @torch.inference_mode()
    def sample(
        self, prompts: Sequence[Sequence[int]], question_ids: Sequence[str], plan: BatchPlan
    ) -> list[list[list[int]]]:
        """The tokens of every drawn answer of every prompt, in batches no larger than planned."""
        steps = self.decoder.max_new_tokens
        numbers = np.stack([draw_numbers(i, self.count, steps) for i in question_ids])
        samples: list[list[list[int]]] = [[] for _ in prompts]
        for asked, drawn in self._split(prompts, plan):
            part = numbers[asked, drawn]
            batch = SampleBatch(self.decoder, prompts[asked], part, self.temperature)
            answers = batch.generate()
            for index, question in enumerate(range(len(prompts))[asked]):
                samples[question] += answers[index * part.shape[1] : (index + 1) * part.shape[1]]
        return samples

    def _split(
        self, prompts: Sequence[Sequence[int]], plan: BatchPlan
    ) -> Iterator[tuple[slice, slice]]:
        """Which questions and which of their draws form a batch: if all draws of a question fit,
        its prompt is passed once for all of them."""
        longest = max(map(len, prompts)) + self.decoder.max_new_tokens
        rows = max(1, min(plan.rows, plan.tokens // longest))
        questions, samples = max(1, rows // self.count), min(rows, self.count)
        for first in range(0, len(prompts), questions):
            for begin in range(0, self.count, samples):
                yield slice(first, first + questions), slice(begin, begin + samples)


class SampleBatch(PaddedBatch):
    """Several answers to each of some prompts, without recording the passes."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        numbers: Float[np.ndarray, "prompts samples tokens"],
        temperature: float,
    ) -> None:
        super().__init__(decoder.batch_model, prompts, room=decoder.max_new_tokens)
        self.decoder = decoder
        self._samples, self._temperature = numbers.shape[1], temperature
        flat = torch.from_numpy(numbers.reshape(-1, numbers.shape[2]))
        self._numbers = flat.to(decoder.device)
        self._place = torch.zeros(1, dtype=torch.long, device=decoder.device)

    def generate(self) -> list[list[int]]:
        """Draw and pass tokens until every answer ends; the draws of a prompt are consecutive."""
        logits = torch.cat(self.pass_prompts(keep=1))[:, -1]
        owner = self.repeat_rows(self._samples)
        answers: list[list[int]] = [[] for _ in range(len(owner))]
        ended = [False] * len(owner)
        drawn, step = self._draw(logits[owner]), self.stepper(self._draw)
        for number in range(self.decoder.max_new_tokens):
            going = self._extend(answers, ended, drawn.tokens.tolist())
            # Only the text of the last token is needed.
            if number + 1 == self.decoder.max_new_tokens or not any(going):
                break
            self._place.fill_(number + 1)
            drawn = step(drawn, going, number)
        return answers

    def _draw(self, logits: Float[Tensor, "rows vocabulary"]) -> Drawn:
        numbers = self._numbers.index_select(1, self._place)[self.rows]
        return Drawn(draw_tokens(logits, numbers, self._temperature))

    def _extend(self, answers: list[list[int]], ended: list[bool], tokens: list[int]) -> list[bool]:
        """Add each row's token to its answer, cut like greedy answers; returns which continue."""
        end, rows = self.decoder.answer_end, self.rows.tolist()
        for row, token in zip(rows, tokens, strict=True):
            answer = answers[row]
            ended[row] = ended[row] or end.before(answer, token) is not None
            if ended[row]:
                continue
            answer.append(token)
            keep = end.repeats(answer)
            if keep is not None:
                del answer[keep:]
                ended[row] = True
        return [not ended[row] for row in rows]


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
