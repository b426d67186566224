"""Answer a batch of prompts and record the model's internals in the same passes.

Each answer token is passed through the model once, to record it and to choose the next one: there
is no second pass. Finished rows leave the batch. The tokens that all prompts start with (system
message, instruction) are passed once for the whole run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from clew.hallucination.llm.device_map import model_device
from clew.hallucination.llm.memory import BatchPlan
from clew.hallucination.llm.observe import ModelObserver, accepted_arguments
from clew.hallucination.llm.prompts import AnswerEnd, StopReason, repetition_start
from clew.hallucination.llm.sampling import (
    Chosen,
    choose_tokens,
    draw_numbers,
    draw_tokens,
)
from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.compact import COLUMNS, CompactRecord, Reduced, Slots
from clew.hallucination.traces.schema import TraceShape

# Logits in float32 at a time when the tokens of given answers are scored.
_SCORED_VALUES = 1 << 26


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


class RoomyCache(Cache):
    """The cache of a generation batch, `slots` tokens long in every layer."""

    def __init__(self, num_layers: int, rows: int, slots: int) -> None:
        self.rooms = [_RoomyLayer(rows, slots) for _ in range(num_layers)]
        super().__init__(layers=list(self.rooms))

    def fill(self, prefix: "RoomyCache") -> None:
        """Start every row with the same tokens, those of a cache of one row."""
        for mine, theirs in zip(self.rooms, prefix.rooms, strict=True):
            mine.update(
                theirs.keys[:, :, : theirs.length].expand(mine.rows, -1, -1, -1),
                theirs.values[:, :, : theirs.length].expand(mine.rows, -1, -1, -1),
            )

    def go_to(self, slot: int, first: int = 0, last: int | None = None) -> None:
        """The next pass writes rows `first` to `last`, starting at `slot`."""
        for layer in self.rooms:
            layer.length = slot
            layer.window = slice(first, layer.rows if last is None else last)

    def write_at(self, slot: Tensor) -> None:
        """From now on every pass writes one token at `slot` (on the device); all slots are
        returned, and the mask must hide the empty ones."""
        for layer in self.rooms:
            layer.slot = slot

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        for layer in self.rooms:
            layer.keep_rows(rows)


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """The cache and record of the prefix shared by all prompts."""

    tokens: list[int]
    cache: RoomyCache | None = None
    record: CompactRecord | None = None


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


def ignore_tokens(_count: int) -> None:
    """The `on_passed` of a model that nobody watches."""


@dataclass(kw_only=True)
class BatchModel:
    """A model that batches are passed through. `arguments` returns a pass's arguments other than
    tokens and mask. With `graphs`, steps are replayed as a CUDA graph. All sequences start with the
    tokens of `prefix`. `on_passed` is called after each pass with its number of tokens, padding and
    finished rows included.
    """

    model: PreTrainedModel
    observer: ModelObserver
    dtype: torch.dtype
    arguments: Callable[[Tensor, int], dict[str, Any]]
    graphs: bool = False
    prefix: Prefix = field(default_factory=lambda: Prefix(tokens=[]))
    on_passed: Callable[[int], None] = ignore_tokens

    @contextmanager
    def watched(self, on_passed: Callable[[int], None]) -> Iterator[None]:
        """While open, `on_passed` is called."""
        before, self.on_passed = self.on_passed, on_passed
        try:
            yield
        finally:
            self.on_passed = before

    @property
    def device(self) -> torch.device:
        return model_device(self.model)


class HasTokens(Protocol):
    """What a step chooses from the logits; it has at least the next token of each row."""

    @property
    def tokens(self) -> Int[Tensor, " rows"]: ...


Choice = TypeVar("Choice", bound=HasTokens)


class PaddedBatch:
    """The state of one batch: slots, cache, and the unfinished rows."""

    def __init__(
        self,
        model: BatchModel,
        sequences: Sequence[Sequence[int]],
        *,
        room: int,
        answer_lengths: Sequence[int] | None = None,
    ) -> None:
        self.model, self.dtype = model, model.dtype
        prefix = model.prefix
        skip, device = len(prefix.tokens), model.device
        rests = [list(sequence[skip:]) for sequence in sequences]
        width = max(len(rest) for rest in rests)
        self.ids = torch.tensor([[0] * (width - len(r)) + r for r in rests], device=device)
        self.paddings = [width - len(rest) for rest in rests]
        given = torch.tensor(answer_lengths or [0] * len(rests), device=device)
        self.slots = Slots(
            prefix=skip,
            width=width,
            room=room,
            padding=torch.tensor(self.paddings, device=device),
            prompt_end=skip + width - given,
        )
        self.cache = RoomyCache(model.observer.num_layers, len(rests), self.slots.count)
        if prefix.cache is not None:
            self.cache.fill(prefix.cache)
        self.rows = torch.arange(len(rests), device=device)
        self.lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
        self.used = self.slots.used(self.lengths + room)

    def pass_prompts(
        self, keep: int, *, even: bool = False
    ) -> list[Float[Tensor, "rows keep vocabulary"]]:
        """Prefill: run the prompts, without the shared prefix, through the model; yields the logits
        of the last tokens, group by group. A large batch is run in groups of rows: since a run
        sorts them by length, each group is padded only to its own longest prompt. `even`: their
        lengths are similar, so that groups gain nothing.
        """
        count = len(self.rows)
        groups = max(1, min(_MAX_GROUPS, count // _MIN_GROUP_ROWS))
        if even and count * self.slots.width <= _MAX_EVEN_SLOTS:
            groups = 1
        edges = [count * i // groups for i in range(groups + 1)]
        return [self._pass_group(first, last, keep) for first, last in pairwise(edges)]

    def _pass_group(
        self, first: int, last: int, keep: int
    ) -> Float[Tensor, "rows keep vocabulary"]:
        """Prefill the prompts of some rows, in chunks if they are long."""
        rows = self.rows[first:last]
        block = (last - first) * self.model.observer.heads * self.slots.count
        piece = max(keep, MAX_BLOCK // block)
        width = self.slots.width
        start = min(self.paddings[first:last])
        # The last chunk is never shortened: its logits are needed.
        stops = list(range(width, start, -piece))[::-1]
        for stop in stops:
            self.cache.go_to(self.slots.prefix + start, first, last)
            ids = self.ids[first:last, start:stop]
            logits = self._pass(rows, ids, self.slots.prefix + start, keep)
            start = stop
        self.model.on_passed((last - first) * width)
        return logits

    def repeat_rows(self, count: int) -> Int[Tensor, " rows"]:
        """After the prompts, repeat each row `count` times; returns the prompt that each new row
        came from."""
        owner = self.rows.repeat_interleave(count)
        self.cache.keep_rows(owner)
        self.used = self.used[owner]
        self.rows = torch.arange(len(owner), device=owner.device)
        return owner

    def pass_behind(
        self, tokens: Sequence[int], *, after: int = 0
    ) -> Float[Tensor, "rows vocabulary"]:
        """Pass the same tokens behind every row, `after` slots behind the prompts; returns the
        logits of the last one. They replace what was passed there before."""
        start = self.slots.prefix + self.slots.width + after
        block = len(self.rows) * self.model.observer.heads * self.slots.count
        for piece in torch.tensor(tokens, device=self.ids.device).split(max(1, MAX_BLOCK // block)):
            self.cache.go_to(start)
            logits = self._pass(self.rows, piece.expand(len(self.rows), -1), start, 1)[:, -1]
            start += len(piece)
        self.model.on_passed(len(self.rows) * len(tokens))
        return logits

    def stepper(
        self, choose: Callable[[Tensor], Choice]
    ) -> Callable[[Choice, list[bool], int], Choice]:
        """A function that runs one decoding step: it passes the chosen token of every unfinished
        row through the model and chooses the next, with a CUDA graph on a GPU and plain forward
        passes elsewhere."""
        rows = len(self.rows)
        graph = StepGraph(self, choose) if self.model.graphs else None

        def step(chosen: Choice, going: list[bool], number: int) -> Choice:
            if graph is not None:
                found = graph(chosen, going, number)
            else:
                found = choose(self._step(chosen.tokens, going, number))
            self.model.on_passed(rows)
            return found

        return step

    def _step(
        self, tokens: Int[Tensor, " rows"], going: list[bool], number: int
    ) -> Float[Tensor, "going vocabulary"]:
        """Pass one token of every unfinished row; drop the others from the batch."""
        if not all(going):
            keep = torch.tensor([i for i, goes in enumerate(going) if goes], device=tokens.device)
            self.rows, tokens = self.rows[keep], tokens[keep]
            self.cache.keep_rows(keep)
        start = self.slots.prefix + self.slots.width + number
        self.cache.go_to(start)
        return self._pass(self.rows, tokens[:, None], start, 1)[:, -1]

    def _pass(
        self,
        rows: Int[Tensor, " rows"],
        ids: Int[Tensor, "rows tokens"],
        start: int,
        keep: int,
    ) -> Float[Tensor, "rows keep vocabulary"]:
        used = self.used[rows, : start + ids.shape[1]]
        positions = (used.cumsum(1) - 1).clamp(min=0)[:, start:]
        self.expect(rows, start, used[:, start:])
        return self.forward(ids, used.long(), positions, keep)

    def forward(
        self, ids: Int[Tensor, "rows tokens"], mask: Tensor, positions: Tensor, keep: int
    ) -> Float[Tensor, "rows keep vocabulary"]:
        output = self.model.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            **self.model.arguments(positions, keep),
        )
        return output.logits[:, -keep:]

    def expect(
        self, rows: Int[Tensor, " rows"], start: int, valid: Bool[Tensor, "rows tokens"]
    ) -> None:
        """Called before each pass, for a batch that is recorded."""

    def expect_steps(self, slot: Int[Tensor, " 1"], alive: Bool[Tensor, " rows"]) -> None:
        """Called before the passes of a graph, for a batch that is recorded."""


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


# The largest attention block (rows x heads x tokens x columns, in numbers) of one pass; longer
# prompts are passed in chunks.
MAX_BLOCK = 1 << 26
_MAX_GROUPS = 4
_MIN_GROUP_ROWS = 32
# Sequences of similar lengths are not split into groups up to this many slots: on a fast GPU the
# host would not keep up with passes that are shorter.
_MAX_EVEN_SLOTS = 1 << 13


class _RoomyLayer(DynamicLayer):
    """One layer's keys and values: a buffer of `rows` x `slots`, filled at given slots."""

    keys: Tensor
    values: Tensor

    def __init__(self, rows: int, slots: int) -> None:
        super().__init__()
        self.rows, self.slots = rows, slots
        self.window = slice(0, rows)
        self.length = 0
        self.slot: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.slot is not None:
            self.keys.index_copy_(2, self.slot, key_states)
            self.values.index_copy_(2, self.slot, value_states)
            return self.keys, self.values
        start, self.length = self.length, self.length + key_states.shape[-2]
        self.keys[self.window, :, start : self.length] = key_states
        self.values[self.window, :, start : self.length] = value_states
        return self.keys[self.window, :, : self.length], self.values[self.window, :, : self.length]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.length

    def keep_rows(self, rows: Tensor) -> None:
        here = rows.to(self.keys.device)
        self.keys = self.keys.index_select(0, here)
        self.values = self.values.index_select(0, here)
        self.rows = len(rows)

    def _allocate(self, states: Tensor) -> Tensor:
        _, heads, _, dim = states.shape
        return states.new_zeros(self.rows, heads, self.slots, dim)


class FixedBatch(Protocol):
    """What the step needs from a batch whose rows stay in place."""

    slots: Slots
    cache: RoomyCache
    dtype: torch.dtype
    used: Bool[Tensor, "rows slots"]

    def expect_steps(self, slot: Tensor, alive: Tensor) -> None: ...

    def forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, keep: int
    ) -> Float[Tensor, "rows keep vocabulary"]: ...


class StepGraph(Generic[Choice]):
    """One pass of one token for every row, captured as a CUDA graph and replayed.

    A pass over one token is limited by the host, which launches thousands of small kernels;
    replayed, it runs at the speed of the GPU. (On a CPU the same pass runs without a graph, which
    only tests use.)
    """

    def __init__(self, batch: FixedBatch, choose: Callable[[Tensor], Choice]) -> None:
        rows, device = len(batch.used), batch.used.device
        self._batch, self._choose = batch, choose
        self._slot = torch.tensor([batch.slots.prefix + batch.slots.width], device=device)
        self._alive = torch.zeros(rows, dtype=torch.bool, device=device)
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        slots = torch.arange(batch.slots.count, device=device)
        self._is_prompt = batch.used & (slots < self._slot)
        self._is_room = slots >= self._slot
        self._slots = slots
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, chosen: Choice, going: list[bool], number: int) -> Choice:
        on_gpu = self._tokens.is_cuda
        if number == 0:
            self._begin(chosen)
        if self._graph is None and on_gpu:
            self._capture()
        self._alive.copy_(torch.tensor(going, pin_memory=on_gpu), non_blocking=True)
        self._slot.fill_(self._batch.slots.prefix + self._batch.slots.width + number)
        if self._graph is None:
            return self._pass()
        self._graph.replay()
        return self._chosen

    def _begin(self, chosen: Choice) -> None:
        self._tokens.copy_(chosen.tokens[:, None])
        self._batch.cache.write_at(self._slot)
        self._batch.expect_steps(self._slot, self._alive)

    def _capture(self) -> None:
        """Run once to warm up (no row is alive, so it has no effect), then capture."""
        tokens = self._tokens.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._pass()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._chosen = self._pass()
        self._tokens.copy_(tokens)

    def _pass(self) -> Choice:
        visible = self._is_prompt | (self._is_room & (self._slots <= self._slot))
        dtype = self._batch.dtype
        mask = torch.where(visible, 0.0, torch.finfo(dtype).min).to(dtype)[:, None, None]
        positions = visible.sum(1, keepdim=True) - 1
        logits = self._batch.forward(self._tokens, mask, positions, 1)[:, -1]
        chosen = self._choose(logits)
        self._tokens.copy_(chosen.tokens[:, None])
        return chosen


@torch.inference_mode()
def answer_with_beams(
    decoder: Decoder, prompts: Sequence[Sequence[int]], num_beams: int
) -> tuple[list[GeneratedAnswer], Reduced]:
    """The best beam's answer to each prompt, cut like greedy answers, with its record."""
    width, device = max(len(prompt) for prompt in prompts), decoder.device
    rows = [[0] * (width - len(p)) + list(p) for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    ends = decoder.answer_end.end_tokens
    found = _search(
        decoder.model,
        input_ids=torch.tensor(rows, device=device),
        attention_mask=torch.tensor(mask, device=device),
        max_new_tokens=decoder.max_new_tokens,
        num_beams=num_beams,
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    cuts = [decoder.answer_end.cut(row) for row in found[:, width:].tolist()]
    scores, reduced = decoder.record(prompts, [tokens for tokens, _ in cuts])
    answers = [
        GeneratedAnswer(tokens=tokens, stop_reason=reason, logprobs=logprobs, entropies=entropies)
        for (tokens, reason), (logprobs, entropies) in zip(cuts, scores, strict=True)
    ]
    return answers, reduced


def _search(model: Any, **options: Any) -> torch.Tensor:
    """Generate without the penalties and limits of the model's own generation config: they would
    change the answers without being recorded in the manifest."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        return model.generate(**options)
    finally:
        model.generation_config = own


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
