"""Compare answers drawn for a question by asking the model itself whether one entails the other.
All pairs of a question share the tokens before the first answer, which are passed once.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Float32

from clew.hallucination.capture.batch import BatchModel, PaddedBatch, Prefix
from clew.hallucination.capture.dialogue import format_chat, shared_prefix
from clew.hallucination.capture.evaluation import find_replies
from clew.hallucination.capture.models import LoadedModel, context_tokens, sliding_window
from clew.hallucination.capture.phrasings import Entailment
from clew.hallucination.capture.plan import BatchPlan, ExtraWork, make_batches


class Comparer:
    """Asks a model which of several answers to a question entail each other."""

    def __init__(self, entailment: Entailment, loaded: LoadedModel, *, chat: bool) -> None:
        """Raises InputError if the model cannot be asked."""
        self.entailment, self._tokenizer, self._chat = entailment, loaded.tokenizer, chat
        self._max_tokens = context_tokens(loaded.model)
        self._window = sliding_window(loaded.model)
        before = self._format("", "", "")
        true, false = (f"{'' if chat else ' '}{one}" for one in (entailment.true, entailment.false))
        self._replies = find_replies(self._tokenizer, before, true, false)

    def extra_work(self, draws: int, max_new_tokens: int) -> ExtraWork:
        """What comparing the answers drawn for one question takes at most."""
        [empty] = self._encode([self._format("", "", "")])
        pairs = draws * (draws - 1)
        return ExtraWork(
            repeats=1, tokens=pairs * (len(empty) + 2 * max_new_tokens), bytes=4 * draws**2
        )

    @torch.inference_mode()
    def compare(
        self, model: BatchModel, question: str, answers: Sequence[str], plan: BatchPlan
    ) -> Float32[np.ndarray, "answers answers"]:
        """How probable it is, according to the model, that the answer of the row entails that of
        the column; 1 for the same text. A pair that the model has no room for counts as 0."""
        texts = list(dict.fromkeys(answers))
        found = np.eye(len(texts), dtype=np.float32)
        pairs = list(permutations(range(len(texts)), 2))
        filled = [self._format(question, texts[i], texts[j]) for i, j in pairs]
        sequences = [[*one, *self._replies.lead] for one in self._encode(filled)]
        fits = [n for n, one in enumerate(sequences) if len(one) <= self._max_tokens]
        chances = self._pass(model, [sequences[n] for n in fits], plan)
        for n, chance in zip(fits, chances, strict=True):
            found[pairs[n]] = chance
        places = [texts.index(answer) for answer in answers]
        return found[np.ix_(places, places)]

    def _pass(
        self, model: BatchModel, sequences: Sequence[list[int]], plan: BatchPlan
    ) -> Float32[np.ndarray, " pairs"]:
        chances = np.zeros(len(sequences), np.float32)
        if not sequences:
            return chances
        model = self._share(model, sequences, plan)
        true, false = self._replies.true, self._replies.false
        for rows in make_batches([len(one) for one in sequences], plan, 0):
            batch = PaddedBatch(model, [sequences[row] for row in rows], room=0)
            logits = torch.cat(batch.pass_prompts(keep=1))[:, -1].float()
            chances[rows] = (logits[:, true] - logits[:, false]).sigmoid().cpu().numpy()
        return chances

    def _share(
        self, model: BatchModel, sequences: Sequence[list[int]], plan: BatchPlan
    ) -> BatchModel:
        """The model with the tokens that all sequences start with, passed once."""
        alone = replace(model, prefix=Prefix(tokens=[]))
        longest = max(len(one) for one in sequences)
        # Padding after a shared prefix would shift what a sliding window sees.
        if plan.same_length or (self._window is not None and longest > self._window):
            return alone
        tokens = shared_prefix(sequences)
        if not tokens:
            return alone
        batch = PaddedBatch(alone, [tokens], room=0)
        batch.pass_prompts(keep=1)
        return replace(model, prefix=Prefix(tokens=tokens, cache=batch.cache))

    def _format(self, question: str, first: str, second: str) -> str:
        text = self.entailment.fill(question, first, second)
        if not self._chat:
            return f"{text}\nReply:"
        return format_chat(self._tokenizer, [{"role": "user", "content": text}])

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            texts, add_special_tokens=not self._chat, return_attention_mask=False
        )
        return [list(ids) for ids in encoded["input_ids"]]
