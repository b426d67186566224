"""The compact record of a batch of answers, filled while the passes run.

Everything kept of the attention is a reduction over its rows, so a pass over one new token adds one
row, and nothing larger than one layer's attention is ever in memory.

A batch is laid out in `slots`: first the prefix shared by all prompts, then the rest of each
prompt, padded on the left, then the answers.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.schema import TraceShape

FLOAT16_MAX = 65504.0
_TINY = 1e-30


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
    and the lookback masses."""

    def __init__(self, shape: TraceShape, basis: Basis, slots: Slots, dtype: torch.dtype) -> None:
        self.shape, self.basis, self.slots = shape, basis, slots
        batch, layers, heads = len(slots.padding), shape.layers, shape.heads
        count, k = slots.count, shape.edges_per_token
        device = slots.padding.device
        self.edges_kept = min(k, count)
        zeros = functools.partial(torch.zeros, dtype=torch.float32, device=device)
        self.last_hidden = torch.zeros(batch, layers, shape.dim, dtype=dtype, device=device)
        self.answer_sum = zeros(batch, layers, shape.dim)
        self.nodes = zeros(batch, layers, count, shape.node_dim)
        self.edge_weight = zeros(batch, layers, count, k)
        self.edge_slot = torch.zeros(batch, layers, count, k, dtype=torch.int32, device=device)
        self.diagonal = zeros(batch, layers, heads, count)
        self.received = zeros(batch, layers, heads, count)
        self.masses = zeros(batch, layers, heads, count, 2)
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
        projected = self.basis.project(layer, states)
        self.nodes[self._rows, layer, self._start : stop] = projected
        self.last_hidden[self._rows, layer] = states[:, -1].to(self.last_hidden.dtype)
        skip = max(0, self._first_answer - self._start)
        if skip < states.shape[1]:
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
        k = min(self.shape.edges_per_token, columns)
        strongest = weights.mean(1, dtype=torch.float32).topk(k, dim=-1)
        self.edge_weight[rows, layer, start:stop, :k] = strongest.values
        self.edge_slot[rows, layer, start:stop, :k] = strongest.indices.int()
        diagonal = weights.diagonal(offset=start, dim1=-2, dim2=-1)
        self.diagonal[rows, layer, :, start:stop] = diagonal.float()
        self.received[rows, layer, :, :columns] += (self._valid @ weights).squeeze(-2).float()
        self.masses[rows, layer, :, start:stop] = (weights @ self._sides).float()

    def _step_hidden(self, layer: int, states: Tensor, slot: Tensor, alive: Tensor) -> None:
        self.nodes[:, layer].index_copy_(1, slot, self.basis.project(layer, states))
        last = self.last_hidden[:, layer]
        last.copy_(torch.where(alive[:, None], states[:, -1].to(last.dtype), last))
        self.answer_sum[:, layer] += torch.where(alive[:, None], states[:, -1], 0).float()

    def _step_attention(self, layer: int, weights: Tensor, slot: Tensor, alive: Tensor) -> None:
        weights = weights.to(self._valid.dtype)
        strongest = weights.mean(1, dtype=torch.float32).topk(self.edges_kept, dim=-1)
        self.edge_weight[:, layer, :, : self.edges_kept].index_copy_(1, slot, strongest.values)
        slots = strongest.indices.int()
        self.edge_slot[:, layer, :, : self.edges_kept].index_copy_(1, slot, slots)
        row = weights[:, :, 0]
        self.diagonal[:, layer].index_copy_(2, slot, row.index_select(-1, slot).float())
        self.received[:, layer] += row * alive[:, None, None]
        self.masses[:, layer].index_copy_(2, slot, (weights @ self._sides).float())

    def replace_row(self, row: int, other: "CompactRecord", other_row: int) -> None:
        """Copy the record of one sequence from another batch with the same prefix."""
        prefix = self.slots.prefix
        count = other.slots.width - int(other.slots.padding[other_row])
        here = prefix + int(self.slots.padding[row])
        there = prefix + int(other.slots.padding[other_row])
        self.last_hidden[row] = other.last_hidden[other_row]
        self.answer_sum[row] = other.answer_sum[other_row]
        for name, along in (("nodes", 1), ("edge_weight", 1), ("diagonal", 2), ("masses", 2)):
            source = getattr(other, name)[other_row].narrow(along, there, count)
            getattr(self, name)[row].narrow(along, here, count).copy_(source)
        self.received[row] = 0
        self.received[row][..., :prefix] = other.received[other_row][..., :prefix]
        source = other.received[other_row][..., there : there + count]
        self.received[row][..., here : here + count] = source
        slot = other.edge_slot[other_row][:, there : there + count]
        moved = torch.where(slot < prefix, slot, slot + (here - there))
        self.edge_slot[row][:, here : here + count] = moved

    def finish(self, lengths: Int[Tensor, " batch"], answers: Int[Tensor, " batch"]) -> "Reduced":
        """The fields of all traces, concatenated, without padding.

        `lengths` is each row's number of tokens, `answers` the number of answer tokens among them.
        """
        used = self.slots.used(lengths)
        index = (used.cumsum(1) - 1).clamp(min=0)
        return Reduced(
            last_hidden=self.last_hidden,
            answer_hidden=self.answer_sum / answers.clamp(min=1)[:, None, None],
            nodes=_select(self.nodes, used[:, None]),
            edge_source=_select(self._edge_source(), used[:, None]),
            edge_weight=_select(self.edge_weight, used[:, None]),
            attention_log_diagonal=_select(
                self.diagonal.clamp(min=_TINY).log(), used[:, None, None]
            ),
            laplacian_diagonal=_select(self._laplacian(lengths, index), used[:, None, None]),
            lookback=self._lookback(lengths, answers, used, index),
        )

    def _edge_source(self) -> Int[Tensor, "batch layers slots k"]:
        slot = self.edge_slot
        shifted = slot - self.slots.padding[:, None, None, None].int()
        source = torch.where(slot < self.slots.prefix, slot, shifted)
        return torch.where(self.edge_weight > 0, source, 0)

    def _laplacian(
        self, lengths: Int[Tensor, " batch"], index: Int[Tensor, "batch slots"]
    ) -> Float[Tensor, "batch layers heads slots"]:
        below = (lengths[:, None] - index).clamp(min=1)[:, None, None]
        return self.received / below - self.diagonal

    def _lookback(
        self,
        lengths: Int[Tensor, " batch"],
        answers: Int[Tensor, " batch"],
        used: Bool[Tensor, "batch slots"],
        index: Int[Tensor, "batch slots"],
    ) -> Float[Tensor, "batch layers heads"]:
        prompts = (lengths - answers)[:, None]
        is_answer = used & (index >= prompts)
        context = self.masses[..., 0] / prompts.clamp(min=1)[:, None, None]
        generated = self.masses[..., 1] / (index - prompts + 1).clamp(min=1)[:, None, None]
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
    return values[mask.expand(values.shape[: mask.dim()])]


def to_float16(values: Tensor) -> Tensor:
    """Float16, with values beyond its range clamped to its maximum; infinities and NaN stay."""
    if values.dtype == torch.float16:
        return values
    clipped = values.clamp(-FLOAT16_MAX, FLOAT16_MAX)
    return torch.where(values.isfinite(), clipped, values).to(torch.float16)


def reduced_columns(reduced: Reduced) -> dict[str, np.ndarray]:
    """The array fields as flat NumPy arrays on the host, in their storage types."""
    halves = {
        name: to_float16(getattr(reduced, name))
        for name in (
            "last_hidden",
            "answer_hidden",
            "nodes",
            "edge_weight",
            "attention_log_diagonal",
            "laplacian_diagonal",
            "lookback",
        )
    }
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
        torch.cuda.synchronize()
    return {name: flat(tensor) for name, tensor in host.items()}


def flat(values: Tensor) -> np.ndarray:
    return values.reshape(-1).numpy()
