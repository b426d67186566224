"""A batch of prompts of different lengths on the device: its slots, cache and passes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from clew.hallucination.capture.device_map import model_device
from clew.hallucination.capture.observe import ModelObserver
from clew.hallucination.capture.steps import Choice, RoomyCache, StepGraph
from clew.hallucination.traces.compact import CompactRecord, Slots

# The largest attention block (rows x heads x tokens x columns, in numbers) of one pass; longer
# prompts are passed in chunks.
MAX_BLOCK = 1 << 26
_MAX_GROUPS = 4
_MIN_GROUP_ROWS = 32
# Sequences of similar lengths are not split into groups up to this many slots: on a fast GPU the
# host would not keep up with passes that are shorter.
_MAX_EVEN_SLOTS = 1 << 13


def ignore_tokens(_count: int) -> None:
    """The `on_passed` of a model that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """The cache and record of the prefix shared by all prompts."""

    tokens: list[int]
    cache: RoomyCache | None = None
    record: CompactRecord | None = None


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
