"""The step of a GPU: one token of every row, captured once as a CUDA graph and replayed."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clew.hallucination.capture.cache import RoomyCache
from clew.hallucination.capture.record import Slots


class HasTokens(Protocol):
    """What was chosen from logits: at least the next token of each row."""

    @property
    def tokens(self) -> Int[Tensor, " rows"]: ...


Choice = TypeVar("Choice", bound=HasTokens)


class FixedBatch(Protocol):
    """What the step needs of a batch whose rows stay in place."""

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

    A pass over one token is bound by the host that launches its thousands of small kernels;
    replayed, it runs at the speed of the card. (On a CPU the same pass runs uncaptured, which
    is of use only to tests.)
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
        """Run once to warm up (no row is alive, so nothing of it counts), then capture."""
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
