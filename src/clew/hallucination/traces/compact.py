"""The compact record of a batch of answers, filled while the passes run.

Everything kept of the attention is a reduction over its rows, so a pass over one new token adds one
row, and nothing larger than one layer's attention is ever in memory.

A batch is laid out in `slots`: first the prefix shared by all prompts, then the rest of each
prompt, padded on the left, then the answers.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.schema import DIAGONALS, TraceShape

FLOAT16_MAX = 65504.0
# PyTorch converts to and from float16 one value at a time on arm, NumPy several at once.
_BY_NUMPY = platform.machine() in ("aarch64", "arm64")
_TINY = 1e-30
# What can be recorded; "edges" are the columns edge_source and edge_weight.
COLUMNS = frozenset(
    (
        *("last_hidden", "answer_hidden", "nodes", "edges"),
        *(*DIAGONALS, "lookback"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Where the tokens of a batch are. `padding[b]` slots after the prefix are empty."""

    prefix: int
    width: int
    room: int
    padding: Int[Tensor, " batch"]
    prompt_end: Int[Tensor, " batch"]

    @property
    def count(self) -> int:
        return self.prefix + self.width + self.room

    def used(self, lengths: Int[Tensor, " batch"]) -> Bool[Tensor, "batch slots"]:
        """Which slots hold a token, given each row's number of tokens."""
        slot = torch.arange(self.count, device=self.padding.device)
        end = (lengths + self.padding)[:, None]
        start = (self.prefix + self.padding)[:, None]
        return (slot < self.prefix) | ((slot >= start) & (slot < end))


class CompactRecord:
    """A listener that keeps for every layer: the last token's state, the sum of the answer's
    states, the projected state of every token, the strongest attention edges, the two diagonals
    and the lookback masses. Of these, only the given `columns`: the others are not computed, and
    their fields are empty."""

    def __init__(
        self,
        shape: TraceShape,
        basis: Basis | None,
        slots: Slots,
        dtype: torch.dtype,
        columns: frozenset[str] = COLUMNS,
    ) -> None:
        self.shape, self.basis, self.slots, self.columns = shape, basis, slots, columns
        batch, layers, heads = len(slots.padding), shape.layers, shape.heads
        count, k = slots.count, shape.edges_per_token
        device = slots.padding.device
        self.edges_kept = min(k, count)

        def zeros(wanted: bool, *rest: int, dtype: torch.dtype = torch.float32) -> Tensor:
            size = (batch, layers, *rest) if wanted else (0, layers, *rest)
            return torch.zeros(size, dtype=dtype, device=device)

        self.last_hidden = zeros("last_hidden" in columns, shape.dim, dtype=dtype)
        self.answer_sum = zeros("answer_hidden" in columns, shape.dim)
        self.nodes = zeros("nodes" in columns, count, shape.node_dim)
        self.edge_weight = zeros("edges" in columns, count, k)
        self.edge_slot = zeros("edges" in columns, count, k, dtype=torch.int32)
        self.diagonal = zeros(not columns.isdisjoint(DIAGONALS), heads, count)
        self.received = zeros("laplacian_diagonal" in columns, heads, count)
        self.masses = zeros("lookback" in columns, heads, count, 2)
        self._rows: Int[Tensor, " rows"] = torch.arange(batch, device=device)
        self._start = 0
        # Known on the host, so that passes over prompts alone do not have to look for answers.
        self._first_answer = int(slots.prompt_end.min())
        self._step: tuple[Tensor, Tensor] | None = None
        self._is_answer: Bool[Tensor, "rows tokens"]
        self._valid: Float[Tensor, "rows 1 1 tokens"]
        self._sides: Float[Tensor, "rows 1 columns 2"]

    def fill_prefix(self, prefix: "CompactRecord") -> None:
        """Copy the record of the shared prefix, computed once with a batch of one."""
        length = self.slots.prefix
        self.nodes[:, :, :length] = prefix.nodes[:, :, :length]
        self.edge_weight[:, :, :length] = prefix.edge_weight[:, :, :length]
        self.edge_slot[:, :, :length] = prefix.edge_slot[:, :, :length]
        self.diagonal[..., :length] = prefix.diagonal[..., :length]
        self.received[..., :length] = prefix.received[..., :length]

    def expect(
        self, rows: Int[Tensor, " rows"], start: int, valid: Bool[Tensor, "rows tokens"]
    ) -> None:
        """Announce the next pass: which rows of the batch, from which slot, without padding."""
        self._rows, self._start = rows, start
        self._valid = valid[:, None, None, :].to(self.last_hidden.dtype)
        slot = torch.arange(start + valid.shape[1], device=valid.device)
        in_prompt = slot < self.slots.prompt_end[rows, None]
        sides = torch.stack([in_prompt, ~in_prompt], dim=-1)
        self._sides = sides[:, None].to(self.last_hidden.dtype)
        self._is_answer = ~in_prompt[:, start:]  # padding lies before the prompts

    def expect_steps(self, slot: Int[Tensor, " 1"], alive: Bool[Tensor, " batch"]) -> None:
        """Announce passes of one token for all rows, at the slot that `slot` holds when the pass
        runs; rows that are not alive by then are ignored."""
        everything = torch.arange(len(alive), device=slot.device)
        self.expect(everything, 0, alive.new_ones(len(alive), self.slots.count))
        self._step = slot, alive

    def on_hidden(self, layer: int, states: Float[Tensor, "rows tokens dim"]) -> None:
        if self._step is not None:
            self._step_hidden(layer, states, *self._step)
            return
        stop = self._start + states.shape[1]
        if len(self.nodes):
            projected = self._project(layer, states)
            self.nodes[self._rows, layer, self._start : stop] = projected
        if len(self.last_hidden):
            self.last_hidden[self._rows, layer] = states[:, -1].to(self.last_hidden.dtype)
        skip = max(0, self._first_answer - self._start)
        if len(self.answer_sum) and skip < states.shape[1]:
            # Selected, not multiplied by 0: infinities in a prompt must not reach the sum.
            kept = torch.where(self._is_answer[:, skip:, None], states[:, skip:], 0)
            self.answer_sum[self._rows, layer] += kept.sum(1, dtype=torch.float32)

    def on_attention(self, layer: int, weights: Float[Tensor, "rows heads tokens columns"]) -> None:
        if self._step is not None:
            self._step_attention(layer, weights, *self._step)
            return
        rows, start = self._rows, self._start
        tokens, columns = weights.shape[-2:]
        stop = start + tokens
        weights = weights.to(self._valid.dtype)
        if len(self.edge_weight):
            k = min(self.shape.edges_per_token, columns)
            strongest = weights.mean(1, dtype=torch.float32).topk(k, dim=-1)
            self.edge_weight[rows, layer, start:stop, :k] = strongest.values
            self.edge_slot[rows, layer, start:stop, :k] = strongest.indices.int()
        if len(self.diagonal):
            diagonal = weights.diagonal(offset=start, dim1=-2, dim2=-1)
            self.diagonal[rows, layer, :, start:stop] = diagonal.float()
        if len(self.received):
            self.received[rows, layer, :, :columns] += (self._valid @ weights).squeeze(-2).float()
        if len(self.masses):
            self.masses[rows, layer, :, start:stop] = (weights @ self._sides).float()

    def _step_hidden(self, layer: int, states: Tensor, slot: Tensor, alive: Tensor) -> None:
        if len(self.nodes):
            self.nodes[:, layer].index_copy_(1, slot, self._project(layer, states))
        if len(self.last_hidden):
            last = self.last_hidden[:, layer]
            last.copy_(torch.where(alive[:, None], states[:, -1].to(last.dtype), last))
        if len(self.answer_sum):
            self.answer_sum[:, layer] += torch.where(alive[:, None], states[:, -1], 0).float()

    def _step_attention(self, layer: int, weights: Tensor, slot: Tensor, alive: Tensor) -> None:
        weights = weights.to(self._valid.dtype)
        if len(self.edge_weight):
            strongest = weights.mean(1, dtype=torch.float32).topk(self.edges_kept, dim=-1)
            self.edge_weight[:, layer, :, : self.edges_kept].index_copy_(1, slot, strongest.values)
            slots = strongest.indices.int()
            self.edge_slot[:, layer, :, : self.edges_kept].index_copy_(1, slot, slots)
        row = weights[:, :, 0]
        if len(self.diagonal):
            self.diagonal[:, layer].index_copy_(2, slot, row.index_select(-1, slot).float())
        if len(self.received):
            self.received[:, layer] += row * alive[:, None, None]
        if len(self.masses):
            self.masses[:, layer].index_copy_(2, slot, (weights @ self._sides).float())

    def _project(self, layer: int, states: Tensor) -> Tensor:
        assert self.basis is not None  # nodes are not recorded without one
        return self.basis.project(layer, states)

    def replace_row(self, row: int, other: "CompactRecord", other_row: int) -> None:
        """Copy the record of one sequence from another batch with the same prefix and columns."""
        prefix = self.slots.prefix
        count = other.slots.width - int(other.slots.padding[other_row])
        here = prefix + int(self.slots.padding[row])
        there = prefix + int(other.slots.padding[other_row])
        for name in ("last_hidden", "answer_sum"):
            if len(getattr(self, name)):
                getattr(self, name)[row] = getattr(other, name)[other_row]
        for name, along in (("nodes", 1), ("edge_weight", 1), ("diagonal", 2), ("masses", 2)):
            if len(getattr(self, name)):
                source = getattr(other, name)[other_row].narrow(along, there, count)
                getattr(self, name)[row].narrow(along, here, count).copy_(source)
        if len(self.received):
            self.received[row] = 0
            self.received[row][..., :prefix] = other.received[other_row][..., :prefix]
            source = other.received[other_row][..., there : there + count]
            self.received[row][..., here : here + count] = source
        if len(self.edge_slot):
            slot = other.edge_slot[other_row][:, there : there + count]
            moved = torch.where(slot < prefix, slot, slot + (here - there))
            self.edge_slot[row][:, here : here + count] = moved

    def finish(self, lengths: Int[Tensor, " batch"], answers: Int[Tensor, " batch"]) -> "Reduced":
        """The fields of all traces, concatenated, without padding; empty for what is not recorded.

        `lengths` is each row's number of tokens, `answers` the number of answer tokens among them.
        """
        used = self.slots.used(lengths)
        index = (used.cumsum(1) - 1).clamp(min=0)
        counts = answers.clamp(min=1)[:, None, None]
        wants_logs = "attention_log_diagonal" in self.columns
        logs = log_diagonal(self.diagonal) if wants_logs else self.diagonal[:0]
        return Reduced(
            last_hidden=self.last_hidden,
            answer_hidden=self.answer_sum / counts if len(self.answer_sum) else self.answer_sum,
            nodes=_select(self.nodes, used[:, None]),
            edge_source=_select(self._edge_source(), used[:, None]),
            edge_weight=_select(self.edge_weight, used[:, None]),
            attention_log_diagonal=_select(logs, used[:, None, None]),
            laplacian_diagonal=_select(self._laplacian(lengths, index), used[:, None, None]),
            lookback=self._lookback(lengths, answers, used, index),
        )

    def _edge_source(self) -> Int[Tensor, "batch layers slots k"]:
        slot = self.edge_slot
        if not len(slot):
            return slot
        shifted = slot - self.slots.padding[:, None, None, None].int()
        source = torch.where(slot < self.slots.prefix, slot, shifted)
        return torch.where(self.edge_weight > 0, source, 0)

    def _laplacian(
        self, lengths: Int[Tensor, " batch"], index: Int[Tensor, "batch slots"]
    ) -> Float[Tensor, "batch layers heads slots"]:
        if not len(self.received):
            return self.received
        return laplacian(self.received, self.diagonal, lengths, index)

    def _lookback(
        self,
        lengths: Int[Tensor, " batch"],
        answers: Int[Tensor, " batch"],
        used: Bool[Tensor, "batch slots"],
        index: Int[Tensor, "batch slots"],
    ) -> Float[Tensor, "batch layers heads"]:
        if not len(self.masses):
            return self.masses[..., 0, 0]
        return lookback(self.masses, lengths, answers, index, used)


def log_diagonal(diagonal: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The logarithm of each token's attention to itself."""
    return diagonal.clamp(min=_TINY).log()


def laplacian(
    received: Float[Tensor, "batch layers heads slots"],
    diagonal: Float[Tensor, "batch layers heads slots"],
    lengths: Int[Tensor, " batch"],
    index: Int[Tensor, "batch slots"],
) -> Float[Tensor, "batch layers heads slots"]:
    """The diagonal of the attention's Laplacian: what a token receives on average from itself and
    those after it, less what it gives itself. `index` is each slot's place in its row."""
    below = (lengths[:, None] - index).clamp(min=1)[:, None, None]
    return received / below - diagonal


def lookback(
    masses: Float[Tensor, "batch layers heads slots 2"],
    lengths: Int[Tensor, " batch"],
    answers: Int[Tensor, " batch"],
    index: Int[Tensor, "batch slots"],
    used: Bool[Tensor, "batch slots"],
) -> Float[Tensor, "batch layers heads"]:
    """Attention to the prompt relative to that to the prompt and the answer, per token of either,
    averaged over the answer. `masses` are each token's attention to the prompt and to the
    answer."""
    prompts = (lengths - answers)[:, None]
    is_answer = used & (index >= prompts)
    context = masses[..., 0] / prompts.clamp(min=1)[:, None, None]
    generated = masses[..., 1] / (index - prompts + 1).clamp(min=1)[:, None, None]
    ratio = context / (context + generated).clamp(min=_TINY)
    weight = is_answer[:, None, None] / answers.clamp(min=1)[:, None, None, None]
    return (ratio * weight).sum(-1)


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The array fields of a batch of traces; ragged ones are concatenated."""

    last_hidden: Float[Tensor, "batch layers dim"]
    answer_hidden: Float[Tensor, "batch layers dim"]
    nodes: Float[Tensor, "layers_tokens node_dim"]
    edge_source: Int[Tensor, "layers_tokens k"]
    edge_weight: Float[Tensor, "layers_tokens k"]
    attention_log_diagonal: Float[Tensor, " layers_heads_tokens"]
    laplacian_diagonal: Float[Tensor, " layers_heads_tokens"]
    lookback: Float[Tensor, "batch layers heads"]


def _select(values: Tensor, mask: Tensor) -> Tensor:
    """Rows of `values` where the mask (broadcast over layers and heads) is true, in order."""
    if not len(values):  # not recorded
        return values.flatten(0, mask.dim() - 1)
    return values[mask.expand(values.shape[: mask.dim()])]


def to_float16(values: Tensor) -> Tensor:
    """Float16, with values beyond its range clamped to its maximum; infinities and NaN stay."""
    if values.dtype == torch.float16:
        return values
    if _BY_NUMPY and values.is_cpu and values.dtype == torch.float32:
        array = values.detach().numpy()
        if _is_small(array):
            return torch.from_numpy(array.astype(np.float16))
    clipped = values.clamp(-FLOAT16_MAX, FLOAT16_MAX)  # NaN stays
    return torch.where(values.isinf(), values, clipped).to(torch.float16)


def to_float32(halves: Tensor) -> Tensor:
    if _BY_NUMPY and halves.is_cpu and halves.dtype == torch.float16:
        return torch.from_numpy(halves.numpy().astype(np.float32))
    return halves.float()


def _is_small(values: Float[np.ndarray, "..."]) -> bool:
    """Whether all values are in the range of float16; NaN is not."""
    return bool(values.min(initial=0) >= -FLOAT16_MAX and values.max(initial=0) <= FLOAT16_MAX)


def reduced_columns(
    reduced: Reduced, by_head: Mapping[str, Tensor] | None = None
) -> dict[str, np.ndarray]:
    """The array fields as flat NumPy arrays on the host, in their storage types; those of `by_head`
    instead of the diagonals."""
    names: tuple[str, ...] = ("last_hidden", "answer_hidden", "nodes", "edge_weight", "lookback")
    names = names if by_head is not None else (*names, *DIAGONALS)
    halves = {name: to_float16(getattr(reduced, name)) for name in names} | dict(by_head or {})
    # torch has few operations for uint16; int16 keeps the same bits.
    arrays = _to_host({**halves, "edge_source": reduced.edge_source.to(torch.int16)})
    arrays["edge_source"] = arrays["edge_source"].view(np.uint16)
    return arrays


def _to_host(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Copy to the host; from a GPU all at once, through pinned memory."""
    host = {}
    for name, tensor in tensors.items():
        if tensor.is_cuda:
            target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host[name] = target.copy_(tensor, non_blocking=True)
        else:
            host[name] = tensor
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.current_stream().synchronize()
    return {name: flat(tensor) for name, tensor in host.items()}


def flat(values: Tensor) -> np.ndarray:
    return values.reshape(-1).numpy()
