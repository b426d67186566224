"""Answer a batch of prompts and record the model's internals in the same passes.

Each answer token is passed through the model once, to record it and to choose the next one: there
is no second pass. Finished rows leave the batch. The tokens that all prompts start with (system
message, instruction) are passed once for the whole run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from clew.hallucination.capture.batch import BatchModel, PaddedBatch, Prefix
from clew.hallucination.capture.device_map import model_device
from clew.hallucination.capture.dialogue import AnswerEnd, StopReason, repetition_start
from clew.hallucination.capture.observe import ModelObserver, accepted_arguments
from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.compact import COLUMNS, CompactRecord, Reduced
from clew.hallucination.traces.schema import TraceShape

# Logits in float32 at a time when the tokens of given answers are scored.
_SCORED_VALUES = 1 << 26


class Chosen(NamedTuple):
    """The next token of each row, its log-probability, and the entropy in nats."""

    tokens: Int[Tensor, " rows"]
    logprobs: Float[Tensor, " rows"]
    entropies: Float[Tensor, " rows"]

    def to_lists(self) -> tuple[list[int], list[float], list[float]]:
        numbers = torch.stack([self.tokens.double(), self.logprobs, self.entropies]).tolist()
        return [int(token) for token in numbers[0]], numbers[1], numbers[2]


@dataclass(frozen=True, kw_only=True)
class GeneratedAnswer:
    """One answer: its tokens, why it ended, and the log-probability and entropy of each token."""

    tokens: list[int]
    stop_reason: StopReason
    logprobs: list[float]
    entropies: list[float]


@dataclass(kw_only=True)
class _Draft:
    """An unfinished answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def cut(self, length: int) -> None:
        del self.tokens[length:], self.logprobs[length:], self.entropies[length:]

    def finish(self) -> GeneratedAnswer:
        return GeneratedAnswer(
            tokens=self.tokens,
            stop_reason=self.stop_reason or "length",
            logprobs=self.logprobs,
            entropies=self.entropies,
        )


class Decoder:
    """Greedy answers with their compact record (only its `columns`), for any batch size and prompts
    of any lengths. A record without nodes needs no `basis`."""

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        observer: ModelObserver,
        shape: TraceShape,
        basis: Basis | None,
        answer_end: AnswerEnd,
        max_new_tokens: int,
        prefix: Sequence[int] = (),
        graphs: bool = False,
        columns: frozenset[str] = COLUMNS,
    ) -> None:
        self.shape, self.answer_end, self.max_new_tokens = shape, answer_end, max_new_tokens
        self.device, self.dtype = model_device(model), record_dtype(model)
        self.basis = None if basis is None else basis.to(self.device, self.dtype)
        self.columns = columns
        self.batch_model = BatchModel(
            model=model,
            observer=observer,
            dtype=self.dtype,
            arguments=accepted_arguments(model),
            graphs=graphs,
        )
        self.share_prefix(list(prefix))

    def share_prefix(self, tokens: list[int]) -> None:
        """Pass these tokens once: all prompts of the following batches start with them."""
        self.batch_model.prefix = Prefix(tokens=[])
        self.batch_model.prefix = self._pass_prefix(tokens)

    @property
    def model(self) -> PreTrainedModel:
        return self.batch_model.model

    @property
    def observer(self) -> ModelObserver:
        return self.batch_model.observer

    @torch.inference_mode()
    def answer(self, prompts: Sequence[Sequence[int]]) -> tuple[list[GeneratedAnswer], Reduced]:
        """Answer the prompts (token ids including the shared prefix) and record every token."""
        batch = RecordedBatch(self, prompts, room=self.max_new_tokens)
        with self.observer.listen(batch.record):
            drafts = batch.generate()
        redo = [i for i, draft in enumerate(drafts) if _cut_repetition(draft)]
        answers = [draft.finish() for draft in drafts]
        if redo:
            self._record_again(batch.record, prompts, answers, redo)
        return answers, batch.finish([len(answer.tokens) for answer in answers])

    @torch.inference_mode()
    def record(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[list[float], list[float]]], Reduced]:
        """Record given answers; also returns the log-probability and entropy of their tokens."""
        whole = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        lengths = [len(answer) for answer in answers]
        batch = RecordedBatch(self, whole, room=0, answer_lengths=lengths)
        with self.observer.listen(batch.record):
            logits = batch.pass_prompts(keep=max(lengths) + 1, even=True)
        return score_answers(logits, answers), batch.finish(lengths)

    @torch.inference_mode()
    def time_batch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        steps: int = 1,
        clock: Callable[[], float] | None = None,
    ) -> tuple[float, float]:
        """Seconds to pass the prompts, and seconds for one more token of every row: the fastest of
        some `steps`."""
        now = clock or self._now
        batch = RecordedBatch(self, prompts, room=steps + 1)
        with self.observer.listen(batch.record):
            started = now()
            chosen = choose_tokens(torch.cat(batch.pass_prompts(keep=1))[:, -1])
            passed = now() - started
            step, everyone = batch.stepper(choose_tokens), [True] * len(prompts)
            times = [now()]
            for number in range(steps + 1):
                step(chosen, everyone, number)
                times.append(now())
        taken = [after - before for before, after in pairwise(times)]
        return passed, min(taken[1:])  # the first one warms up

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _record_again(
        self,
        record: CompactRecord,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[GeneratedAnswer],
        redo: list[int],
    ) -> None:
        """Record again, in place, rows whose answer was cut after further tokens had been
        processed."""
        whole = [[*prompts[row], *answers[row].tokens] for row in redo]
        lengths = [len(answers[row].tokens) for row in redo]
        again = RecordedBatch(self, whole, room=0, answer_lengths=lengths)
        with self.observer.listen(again.record):
            again.pass_prompts(keep=1)
        for index, row in enumerate(redo):
            record.replace_row(row, again.record, index)

    def _pass_prefix(self, tokens: list[int]) -> Prefix:
        if not tokens:
            return Prefix(tokens=[])
        batch = RecordedBatch(self, [tokens], room=0)
        with torch.inference_mode(), self.observer.listen(batch.record):
            batch.pass_prompts(keep=1)
        return Prefix(tokens=tokens, cache=batch.cache, record=batch.record)


class RecordedBatch(PaddedBatch):
    """A batch of answers with the record of all its passes."""

    def __init__(
        self,
        decoder: Decoder,
        sequences: Sequence[Sequence[int]],
        *,
        room: int,
        answer_lengths: Sequence[int] | None = None,
    ) -> None:
        super().__init__(decoder.batch_model, sequences, room=room, answer_lengths=answer_lengths)
        self.decoder = decoder
        self.record = CompactRecord(
            decoder.shape, decoder.basis, self.slots, decoder.dtype, decoder.columns
        )
        if self.model.prefix.record is not None:
            self.record.fill_prefix(self.model.prefix.record)

    def expect(
        self, rows: Int[Tensor, " rows"], start: int, valid: Bool[Tensor, "rows tokens"]
    ) -> None:
        self.record.expect(rows, start, valid)

    def expect_steps(self, slot: Int[Tensor, " 1"], alive: Bool[Tensor, " rows"]) -> None:
        self.record.expect_steps(slot, alive)

    def generate(self) -> list[_Draft]:
        """Choose and pass tokens until every row is finished."""
        drafts = [_Draft() for _ in range(len(self.rows))]
        chosen = choose_tokens(torch.cat(self.pass_prompts(keep=1))[:, -1])
        step = self.stepper(choose_tokens)
        for number in range(self.decoder.max_new_tokens):
            going = self._extend(drafts, chosen)
            if not any(going):
                return drafts
            chosen = step(chosen, going, number)
        self._explain_ends(drafts, chosen)
        return drafts

    def finish(self, answer_lengths: Sequence[int]) -> Reduced:
        answers = torch.tensor(list(answer_lengths), device=self.lengths.device)
        lengths = self.lengths if self.slots.room == 0 else self.lengths + answers
        return self.record.finish(lengths, answers)

    def _extend(self, drafts: list[_Draft], chosen: Chosen) -> list[bool]:
        """Add each row's token to its draft, or finish the draft; returns which rows continue."""
        tokens, logprobs, entropies = chosen.to_lists()
        going = []
        for row, token, logprob, entropy in zip(
            self.rows.tolist(), tokens, logprobs, entropies, strict=True
        ):
            draft = drafts[row]
            if draft.stop_reason is None:
                draft.stop_reason = self.decoder.answer_end.before(draft.tokens, token)
            if draft.stop_reason is None:
                draft.tokens.append(token)
                draft.logprobs.append(logprob)
                draft.entropies.append(entropy)
                if self.decoder.answer_end.repeats(draft.tokens) is not None:
                    draft.stop_reason = "repetition"
            going.append(draft.stop_reason is None)
        return going

    def _explain_ends(self, drafts: list[_Draft], chosen: Chosen) -> None:
        """Set the stop reason of rows that reached the token limit: the next token may have ended
        the answer."""
        for row, token in zip(self.rows.tolist(), chosen.tokens.tolist(), strict=True):
            draft = drafts[row]
            if draft.stop_reason is None:
                draft.stop_reason = self.decoder.answer_end.before(draft.tokens, token) or "length"


def _cut_repetition(draft: _Draft) -> bool:
    keep = repetition_start(draft.tokens) if draft.stop_reason == "repetition" else None
    if keep is None:
        return False
    draft.cut(keep)
    return True


def record_dtype(model: PreTrainedModel) -> torch.dtype:
    """The precision of what is recorded: that of the model."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32


def choose_tokens(logits: Float[Tensor, "rows vocabulary"]) -> Chosen:
    """The most likely token of each row."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.max(-1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
    return Chosen(best.indices, best.values, entropy)


def score_answers(
    groups: list[Float[Tensor, "rows keep vocabulary"]], answers: Sequence[Sequence[int]]
) -> list[tuple[list[float], list[float]]]:
    """Log-probabilities and entropies of given answers, whose last token was predicted by the
    second-to-last logits."""
    scores: list[tuple[list[float], list[float]]] = []
    for group in groups:
        some = answers[len(scores) : len(scores) + len(group)]
        counts = [len(answer) for answer in some]
        found = torch.cat([*_score_tokens(group, some), group.new_zeros(2, 0)], dim=1)
        logprobs, entropies = (part.split(counts) for part in found.cpu())
        pairs = zip(logprobs, entropies, strict=True)
        scores += [(one.tolist(), other.tolist()) for one, other in pairs]
    return scores


def _score_tokens(
    logits: Float[Tensor, "rows keep vocabulary"], answers: Sequence[Sequence[int]]
) -> Iterator[Float[Tensor, "2 tokens"]]:
    """Log-probability and entropy of all tokens of the answers, answer by answer, a few at a time:
    the logits of all of them in float32 would take more memory than the pass."""
    keep, vocabulary = logits.shape[1:]
    places = [
        (row, keep - len(answer) - 1 + number, token)
        for row, answer in enumerate(answers)
        for number, token in enumerate(answer)
    ]
    if not places:
        return
    where = torch.tensor(places, device=logits.device).T
    for row, place, token in zip(
        *(part.split(max(1, _SCORED_VALUES // vocabulary)) for part in where), strict=True
    ):
        logprobs = logits[row, place].float().log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
        yield torch.stack([logprobs.gather(1, token[:, None])[:, 0], entropy])
