"""Answer a batch of prompts and record the model's internals in the same passes.

Each answer token is passed through the model once, to record it and to choose the next one:
there is no second pass. Rows that are done leave the batch. The tokens that all prompts begin
with (system message, instruction) are passed once for the whole run.
"""

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clew.capture.basis import Basis
from clew.capture.cache import RoomyCache
from clew.capture.observe import ModelObserver
from clew.capture.record import CompactRecord, Reduced, Slots
from clew.capture.stopping import AnswerEnd, StopReason, repetition_start
from clew.traces.schema import TraceShape

# The largest attention block (rows x heads x tokens x columns, in numbers) of one pass; longer
# prompts are passed in pieces.
MAX_BLOCK = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its tokens, why it ended, and how sure the model was of each token."""

    tokens: list[int]
    stop_reason: StopReason
    logprobs: list[float]
    entropies: list[float]


@dataclass(kw_only=True)
class _Draft:
    """An answer in the making."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def cut(self, length: int) -> None:
        del self.tokens[length:], self.logprobs[length:], self.entropies[length:]

    def finish(self) -> Answer:
        return Answer(
            tokens=self.tokens,
            stop_reason=self.stop_reason or "length",
            logprobs=self.logprobs,
            entropies=self.entropies,
        )


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """What the shared beginning of all prompts leaves behind: its cache and its record."""

    tokens: list[int]
    cache: RoomyCache | None = None
    record: CompactRecord | None = None


class Decoder:
    """Greedy answers with their compact record, at any batch size, from ragged prompts."""

    def __init__(
        self,
        *,
        model: nn.Module,
        observer: ModelObserver,
        shape: TraceShape,
        basis: Basis,
        answer_end: AnswerEnd,
        max_new_tokens: int,
        prefix: Sequence[int] = (),
    ) -> None:
        self.model, self.observer, self.shape = model, observer, shape
        self.device = model.device
        self.dtype = _record_dtype(model)
        self.basis = basis.to(self.device, self.dtype)
        self.answer_end = answer_end
        self.max_new_tokens = max_new_tokens
        self._extra = accepted_arguments(model)
        self.prefix = self._pass_prefix(list(prefix))

    @torch.inference_mode()
    def answer(self, prompts: Sequence[Sequence[int]]) -> tuple[list[Answer], Reduced]:
        """Answer the prompts (token ids, the shared prefix included) and record every token."""
        batch = _Batch(self, prompts, room=self.max_new_tokens)
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
        """Record given answers; returns the log-probability and entropy of their tokens too."""
        whole = [[*p, *a] for p, a in zip(prompts, answers, strict=True)]
        lengths = [len(answer) for answer in answers]
        batch = _Batch(self, whole, room=0, answer_lengths=lengths)
        logits = batch.pass_prompts(keep=max(lengths) + 1)
        return _score_answers(logits, answers), batch.finish(lengths)

    @torch.inference_mode()
    def time_batch(self, prompts: Sequence[Sequence[int]]) -> tuple[float, float]:
        """Seconds to pass the prompts, and seconds for one more token of every row."""
        batch = _Batch(self, prompts, room=1)
        started = self._now()
        tokens = batch.pass_prompts(keep=1)[:, -1].argmax(-1)
        passed = self._now()
        batch.step(tokens, 0)
        return passed - started, self._now() - passed

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _record_again(
        self,
        record: CompactRecord,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Answer],
        redo: list[int],
    ) -> None:
        """Rows cut back behind tokens that were already passed are recorded anew, in place."""
        whole = [[*prompts[row], *answers[row].tokens] for row in redo]
        lengths = [len(answers[row].tokens) for row in redo]
        again = _Batch(self, whole, room=0, answer_lengths=lengths)
        again.pass_prompts(keep=1)
        for index, row in enumerate(redo):
            record.replace_row(row, again.record, index)

    def _pass_prefix(self, tokens: list[int]) -> Prefix:
        if not tokens:
            return Prefix(tokens=[])
        self.prefix = Prefix(tokens=[])
        with torch.inference_mode():
            batch = _Batch(self, [tokens], room=0)
            batch.pass_prompts(keep=1)
        return Prefix(tokens=tokens, cache=batch.cache, record=batch.record)


class _Batch:
    """The state of one batch: slots, cache, record, and the rows that still go on."""

    def __init__(
        self,
        decoder: Decoder,
        sequences: Sequence[Sequence[int]],
        *,
        room: int,
        answer_lengths: Sequence[int] | None = None,
    ) -> None:
        self.decoder = decoder
        prefix = decoder.prefix
        skip, device = len(prefix.tokens), decoder.device
        rests = [list(sequence[skip:]) for sequence in sequences]
        width = max(len(rest) for rest in rests)
        self.ids = torch.tensor([[0] * (width - len(r)) + r for r in rests], device=device)
        padding = torch.tensor([width - len(rest) for rest in rests], device=device)
        given = torch.tensor(answer_lengths or [0] * len(rests), device=device)
        self.slots = Slots(
            prefix=skip,
            width=width,
            room=room,
            padding=padding,
            prompt_end=skip + width - given,
        )
        self.record = CompactRecord(decoder.shape, decoder.basis, self.slots, decoder.dtype)
        self.cache = RoomyCache(decoder.observer.num_layers, self.slots.count)
        if prefix.cache is not None and prefix.record is not None:
            self.cache.fill(prefix.cache, len(rests))
            self.record.fill_prefix(prefix.record)
        self.rows = torch.arange(len(rests), device=device)
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
        self.used = self.slots.used(self.lengths + room)

    def pass_prompts(self, keep: int) -> Float[Tensor, "rows keep vocabulary"]:
        """Pass everything but the shared prefix, in pieces when it is long."""
        width = self.ids.shape[1]
        block = self.ids.shape[0] * self.decoder.shape.heads * self.slots.count
        piece = max(keep, 1, MAX_BLOCK // block)
        logits: Tensor | None = None
        # The last piece is the full one: its logits are wanted.
        edges = list(range(width, 0, -piece))[::-1]
        start = 0
        for stop in edges:
            logits = self._pass(self.ids[:, start:stop], self.slots.prefix + start, keep)
            start = stop
        assert logits is not None
        return logits

    def generate(self) -> list[_Draft]:
        """Choose and pass tokens until every row is done."""
        decoder = self.decoder
        drafts = [_Draft() for _ in range(len(self.rows))]
        logits = self.pass_prompts(keep=1)[:, -1]
        for step in range(decoder.max_new_tokens):
            tokens, logprobs, entropies = choose_tokens(logits)
            going = self._extend(drafts, tokens, logprobs, entropies)
            if not any(going):
                return drafts
            if not all(going):
                tokens = self._repack(going, tokens)
            logits = self.step(tokens, step)
        self._explain_ends(drafts, logits)
        return drafts

    def step(self, tokens: Int[Tensor, " rows"], step: int) -> Float[Tensor, "rows vocabulary"]:
        """Pass one more token of every row that goes on."""
        start = self.slots.prefix + self.slots.width + step
        return self._pass(tokens[:, None], start, 1)[:, -1]

    def finish(self, answer_lengths: Sequence[int]) -> Reduced:
        answers = torch.tensor(list(answer_lengths), device=self.lengths.device)
        lengths = self.lengths if self.slots.room == 0 else self.lengths + answers
        return self.record.finish(lengths, answers)

    def _pass(
        self, ids: Int[Tensor, "rows tokens"], start: int, keep: int
    ) -> Float[Tensor, "rows keep vocabulary"]:
        stop = start + ids.shape[1]
        used = self.used[self.rows, :stop]
        positions = (used.cumsum(1) - 1).clamp(min=0)[:, start:]
        self.record.expect(self.rows, start, used[:, start:])
        with self.decoder.observer.listen(self.record):
            output = self.decoder.model(
                input_ids=ids,
                attention_mask=used.long(),
                past_key_values=self.cache,
                use_cache=True,
                **self.decoder._extra(positions, keep),
            )
        return output.logits[:, -keep:]

    def _extend(
        self,
        drafts: list[_Draft],
        tokens: Int[Tensor, " rows"],
        logprobs: Float[Tensor, " rows"],
        entropies: Float[Tensor, " rows"],
    ) -> list[bool]:
        """Add each row's token to its draft, or close the draft; says which rows go on."""
        numbers = torch.stack([logprobs, entropies], dim=1).tolist()
        going = []
        for row, token, (logprob, entropy) in zip(
            self.rows.tolist(), tokens.tolist(), numbers, strict=True
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

    def _repack(self, going: list[bool], tokens: Int[Tensor, " rows"]) -> Tensor:
        """Drop finished rows from the cache; those that go on keep their place in the record."""
        keep = torch.tensor([i for i, goes in enumerate(going) if goes], device=tokens.device)
        self.rows = self.rows[keep]
        self.cache.keep_rows(keep)
        return tokens[keep]

    def _explain_ends(self, drafts: list[_Draft], logits: Tensor) -> None:
        """A row that used up its tokens may have been just about to stop."""
        tokens = logits.argmax(-1).tolist()
        for row, token in zip(self.rows.tolist(), tokens, strict=True):
            reason = self.decoder.answer_end.before(drafts[row].tokens, token)
            drafts[row].stop_reason = reason or "length"


def choose_tokens(
    logits: Float[Tensor, "rows vocabulary"],
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """The likeliest token of each row, its log-probability, and the entropy in nats."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.max(-1)
    entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
    return best.indices, best.values, entropy


def _score_answers(
    logits: Float[Tensor, "rows keep vocabulary"], answers: Sequence[Sequence[int]]
) -> list[tuple[list[float], list[float]]]:
    """Log-probabilities and entropies of given answers; prompts end at the last slot but n."""
    scores = []
    for row, answer in zip(logits, answers, strict=True):
        count = len(answer)
        logprobs = row[len(row) - count - 1 : len(row) - 1].float().log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
        ids = torch.tensor(list(answer), dtype=torch.long, device=row.device)
        scores.append((logprobs.gather(1, ids[:, None])[:, 0].tolist(), entropy.tolist()))
    return scores


def _cut_repetition(draft: _Draft) -> bool:
    keep = repetition_start(draft.tokens) if draft.stop_reason == "repetition" else None
    if keep is None:
        return False
    draft.cut(keep)
    return True


def _record_dtype(model: nn.Module) -> torch.dtype:
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32


def accepted_arguments(model: nn.Module) -> Any:
    """Some families take no `position_ids` or `logits_to_keep`; pass only what is understood."""
    names = inspect.signature(model.forward).parameters
    takes_positions = "position_ids" in names
    takes_keep = "logits_to_keep" in names

    def extra(positions: Tensor, keep: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if takes_positions:
            arguments["position_ids"] = positions
        if takes_keep:
            arguments["logits_to_keep"] = keep
        return arguments

    return extra
