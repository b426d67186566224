"""One more token for every row: a preallocated key-value cache, where tokens are written in place
and rows can be dropped; on a GPU, the step is a CUDA graph that is replayed."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from clew.hallucination.traces.compact import Slots


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


class HasTokens(Protocol):
    """What a step chooses from the logits; it has at least the next token of each row."""

    @property
    def tokens(self) -> Int[Tensor, " rows"]: ...


Choice = TypeVar("Choice", bound=HasTokens)


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
