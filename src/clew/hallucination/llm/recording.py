"""What is recorded of running answers: the same as capture stores, computed once per pass for all
layers and rows together, so that it costs little."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from clew.hallucination.llm.packing import Group, Pass, Segment, to_device
from clew.hallucination.traces.compact import (
    COLUMNS,
    Basis,
    Reduced,
    laplacian,
    log_diagonal,
    lookback,
)
from clew.hallucination.traces.schema import TraceShape

_OF_ATTENTION = frozenset(
    {"edges", "attention_log_diagonal", "laplacian_diagonal", "lookback"},
)
# Copies on a GPU have room for a multiple of this many tokens: those of one size join quickly.
_ROUNDED = {"cuda": 128}
# Tensors with one entry per token, and the dimension of the tokens in those of one row.
PER_TOKEN = {
    "nodes": 1,
    "edge_weight": 1,
    "edge_slot": 1,
    "diagonal": 2,
    "received": 2,
    "masses": 2,
}


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What to record of scored requests. `columns` are those of a trace ("edges" are two);
    `token_layers` are the layers whose projected states come with every new token. Both require
    the `basis` where states are projected."""

    shape: TraceShape
    basis: Basis | None
    columns: frozenset[str] = COLUMNS
    token_layers: tuple[int, ...] = ()

    @property
    def needs_attention(self) -> bool:
        return bool(self.columns & _OF_ATTENTION) and self.shape.attention_layers > 0

    def of_layers(self, layers: Sequence[int]) -> "Recording":
        """That of the states of some layers alone."""
        shape = replace(self.shape, layers=len(layers), without_attention=())
        basis = self.basis and self.basis.of_layers(layers)
        return replace(self, shape=shape, basis=basis)


class Passed(Protocol):
    """The tokens of a pass: their rows and positions; `last` are the last ones of the segments,
    which are empty where only the device knows them."""

    @property
    def rows(self) -> Int[Tensor, " tokens"]: ...
    @property
    def positions(self) -> Int[Tensor, " tokens"]: ...
    @property
    def last(self) -> Int[Tensor, " segments"]: ...
    @property
    def has_kernels(self) -> bool: ...
    @property
    def segments(self) -> Sequence[Segment]: ...


@dataclass(frozen=True, kw_only=True)
class RowCopy:
    """The record of one answer: `[1, ...]` each, or, until the next pass, one `row` of the tensors
    of all. Those with one entry per token may have room for more than its `length`. The last
    `answer` tokens are the answer."""

    tensors: dict[str, Tensor]
    columns: frozenset[str]
    length: int
    answer: int
    row: int | None = None

    def spread(self, layers: Sequence[int], count: int) -> "RowCopy":
        """As one of all `count` layers, if these were recorded alone: the others are 0."""
        tensors = {}
        for name, values in self.tensors.items():
            tensors[name] = values.new_zeros(1, count, *values.shape[2:])
            tensors[name][:, list(layers)] = values
        return replace(self, tensors=tensors)


class RowRecord:
    """The record of every row of the engine, filled pass by pass. `version` counts how often its
    tensors were replaced."""

    def __init__(self, recording: Recording, device: torch.device, dtype: torch.dtype) -> None:
        self.recording, self._device, self._dtype = recording, device, dtype
        self._basis = recording.basis.to(device, dtype) if recording.basis else None
        self._token_basis = self._basis and self._basis.of_layers(recording.token_layers)
        self.rows = self.capacity = self.version = 0
        self._tensors: dict[str, Tensor] = {}
        self._prompts = torch.zeros(0, dtype=torch.long, device=device)
        self._borders: dict[int, int] = {}  # the same, for those that need not ask the device

    def prepare_resize(self, rows: int, capacity: int) -> Callable[[], None]:
        """Allocate other sizes, and a spare row, with what fits of the record; the returned
        function puts them in place."""
        tensors = {}
        for name, shape in self._shapes(capacity).items():
            kind = torch.int32 if name == "edge_slot" else torch.float32
            dtype = self._dtype if name == "last_hidden" else kind
            new = torch.zeros(rows + 1, *shape, dtype=dtype, device=self._device)
            old = self._tensors.get(name)
            if old is not None:
                old = old[:-1]
                both = tuple(slice(min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
                new[both] = old[both]
            tensors[name] = new
        prompts = self._prompts.new_zeros(rows + 1)
        count = min(rows + 1, len(self._prompts))
        prompts[:count] = self._prompts[:count]

        def resize() -> None:
            self.rows, self.capacity = rows, capacity
            self.version += 1
            self._tensors, self._prompts = tensors, prompts

        return resize

    def start(self, row: int, prompt_length: int) -> None:
        """A new request gets the row."""
        # Not by indexing: a number given to a tensor on a GPU waits for all of its work.
        self._prompts.select(0, row).fill_(prompt_length)
        self._borders[row] = prompt_length
        for name in ("received", "answer_sum"):
            if name in self._tensors:
                self._tensors[name].select(0, row).zero_()

    def add(self, planned: Pass, alive: Bool[Tensor, " tokens"] | None = None) -> None:
        """Add what was kept of a pass. Tokens that are not `alive` are not part of their answers,
        which had ended before them."""
        if planned.states:
            by_layer = planned.has_kernels  # otherwise, each token's states are copied together
            states = torch.stack(planned.states, 0 if by_layer else 1)
            self.add_states(planned, states if by_layer else states.transpose(0, 1), alive)
        for group in planned.groups:
            if group.weights is not None:
                self._add_weights(group, group.weights, planned, alive)
        if planned.weights is not None and alive is not None:
            self._add_all_weights(planned.weights, planned, alive)

    def project_tokens(self, planned: Pass) -> Float[Tensor, "segments layers node_dim"]:
        """The projected state of each segment's last token, in the layers that were asked for."""
        layers = [planned.states[layer][planned.last] for layer in self.recording.token_layers]
        assert self._token_basis is not None
        return self._token_basis.project(torch.stack(layers)).transpose(0, 1)

    def copy(self, row: int, length: int, answer: int, *, clones: bool = True) -> RowCopy:
        """What has been recorded of one row: `length` tokens, the last `answer` of which are the
        answer. It is reduced later: the engine's thread does not take the time."""
        found = RowCopy(
            tensors=self._tensors,
            columns=self.recording.columns,
            length=length,
            answer=answer,
            row=row,
        )
        if not clones:
            return found
        step = _ROUNDED.get(self._device.type, 1)
        room = min(-(-length // step) * step, self.capacity)
        tensors = {name: self._of_row(name, row, room).clone() for name in self._tensors}
        return replace(found, tensors=tensors, row=None)

    def copy_tokens(self, row: int, length: int) -> dict[str, Tensor]:
        """The record of the first tokens of a row, while nothing follows them."""
        return {
            name: self._of_row(name, row, length).clone()
            for name in self._tensors
            if name in PER_TOKEN
        }

    def paste_tokens(self, rows: slice, tokens: dict[str, Tensor]) -> None:
        """Start rows with the same tokens."""
        for name, values in tokens.items():
            along = PER_TOKEN[name] + 1
            self._tensors[name][rows].narrow(along, 0, values.shape[along]).copy_(values)

    def _of_row(self, name: str, row: int, length: int) -> Tensor:
        tensor = self._tensors[name][row : row + 1]
        along = PER_TOKEN.get(name)
        return tensor if along is None else tensor.narrow(along + 1, 0, length)

    def _shapes(self, slots: int) -> dict[str, tuple[int, ...]]:
        """The tensors that the columns require, each without its first dimension, the rows."""
        shape, columns = self.recording.shape, self.recording.columns
        layers, heads, k = shape.attention_layers, shape.heads, shape.edges_per_token
        states = (shape.layers, shape.dim)
        needed: dict[str, tuple[tuple[int, ...], set[str]]] = {
            "last_hidden": (states, {"last_hidden"}),
            "answer_sum": (states, {"answer_hidden"}),
            "nodes": ((shape.layers, slots, shape.node_dim), {"nodes"}),
            "edge_weight": ((layers, slots, k), {"edges"}),
            "edge_slot": ((layers, slots, k), {"edges"}),
            "diagonal": (
                (layers, heads, slots),
                {"attention_log_diagonal", "laplacian_diagonal"},
            ),
            "received": ((layers, heads, slots), {"laplacian_diagonal"}),
            "masses": ((layers, heads, slots, 2), {"lookback"}),
        }
        return {name: size for name, (size, of) in needed.items() if columns & of and size[0]}

    def add_states(
        self, planned: Passed, states: Float[Tensor, "layers tokens dim"], alive: Tensor | None
    ) -> None:
        """Add the states of a pass; `alive` as in `add`."""
        if planned.has_kernels:
            if alive is None:
                alive = torch.ones_like(planned.rows, dtype=torch.bool)
            self._add_with_kernels(planned, states, alive)
        else:
            self._add_plainly(planned, states, alive)
        if "nodes" in self._tensors:
            assert self._basis is not None  # what is projected is not recorded without one
            nodes = self._basis.project(states).transpose(0, 1)
            self._tensors["nodes"][planned.rows, :, planned.positions] = nodes

    def add_step(
        self,
        rows: Int[Tensor, " tokens"],
        states: Float[Tensor, "tokens layers dim"],
        alive: Bool[Tensor, " tokens"] | None,
    ) -> None:
        """Add one token of each of some answers, if only whole answers are recorded of them: their
        nodes are not. A GPU is not waited for; tokens that are not alive go to the spare row."""
        rows = rows if alive is None else rows.where(alive, self.rows)
        if (kept := self._tensors.get("last_hidden")) is not None:
            kept.index_copy_(0, rows, states.to(self._dtype))
        if (sums := self._tensors.get("answer_sum")) is not None:
            sums.index_add_(0, rows, states.float())

    def _add_with_kernels(self, planned: Passed, states: Tensor, alive: Tensor) -> None:
        from clew.hallucination.llm.kernels import keep_last, sum_states

        rows, tensors = planned.rows, self._tensors
        if "last_hidden" in tensors:
            keep_last(states, rows, planned.last, alive, tensors["last_hidden"])
        if "answer_sum" in tensors:
            where = rows, planned.positions
            sum_states(states, where, self._prompts, alive, tensors["answer_sum"])

    def _add_plainly(self, planned: Passed, states: Tensor, alive: Tensor | None) -> None:
        tensors, states = self._tensors, states.transpose(0, 1)
        if "last_hidden" in tensors:
            rows, kept = planned.rows[planned.last], tensors["last_hidden"]
            all_last = len(planned.segments) == len(states)
            last = (states if all_last else states.index_select(0, planned.last)).to(self._dtype)
            if alive is not None:
                last = torch.where(alive[planned.last][:, None, None], last, kept[rows])
            kept.index_copy_(0, rows, last)
        if "answer_sum" in tensors:
            # Selected, not multiplied by 0: infinities in a prompt must not reach the sum.
            chosen = self._find_answer(planned, alive)
            if len(chosen):
                all_chosen = len(chosen) == len(states)
                answer = (states if all_chosen else states.index_select(0, chosen)).float()
                tensors["answer_sum"].index_add_(0, planned.rows[chosen], answer)

    def _find_answer(self, planned: Passed, alive: Tensor | None) -> Int[Tensor, " chosen"]:
        """Which tokens of a pass are of answers; a GPU is not waited for if that is known."""
        if not planned.segments:
            is_answer = planned.positions >= self._prompts[planned.rows]
            return (is_answer if alive is None else is_answer & alive).nonzero()[:, 0]
        chosen, first = list[int](), 0
        for segment in planned.segments:
            end = first + len(segment.tokens)
            border = self._borders.get(segment.row, end)  # of a row that nobody scores: none
            chosen += range(first + max(0, border - segment.start), end)
            first = end
        return to_device(chosen, self._device)

    def _add_weights(
        self, group: Group, weights: Tensor, planned: Pass, alive: Tensor | None
    ) -> None:
        """Reduce the attention of one group of segments, all layers at once."""
        weights = group.of_segments(weights)
        positions = group.of_segments(group.positions)
        here = slice(group.first, group.end)
        where = planned.rows[here], planned.positions[here]
        if "edge_weight" in self._tensors:
            self._add_edges(group, weights, where)
        if "diagonal" in self._tensors:
            own = positions.clamp(max=planned.columns - 1)[:, None, None, :, None]
            diagonal = weights.gather(-1, own.expand(*weights.shape[:4], 1))[..., 0]
            self._write("diagonal", where, group.real_tokens(diagonal.permute(0, 3, 1, 2)))
        if "received" in self._tensors:
            received = self._tensors["received"][..., : planned.columns]
            given = group.sum_tokens(weights).float()
            if alive is not None:  # each token is a segment of its own
                given = given * alive[:, None, None, None]
            if isinstance(group.lanes, slice) and group.lane is None:  # without a copy
                received[group.lanes].add_(given)
            else:
                received.index_add_(0, group.rows, given)
        if "masses" in self._tensors:
            column = torch.arange(weights.shape[-1], device=weights.device)
            in_prompt = column < self._prompts[group.rows][:, None]
            sides = torch.stack([in_prompt, ~in_prompt], dim=-1).to(weights.dtype)
            masses = (weights.flatten(1, 3) @ sides).view(*weights.shape[:4], 2)
            self._write("masses", where, group.real_tokens(masses.permute(0, 3, 1, 2, 4)))

    def _add_all_weights(
        self, weights: Float[Tensor, "layers tokens heads columns"], planned: Pass, alive: Tensor
    ) -> None:
        """Reduce the attention of all layers and tokens with kernels of their own."""
        from clew.hallucination.llm.kernels import reduce_weights

        rows, positions = planned.rows, planned.positions
        reduce_weights(weights, (rows, positions), self._prompts, alive, self._tensors)
        if "edge_weight" in self._tensors:
            k = min(self.recording.shape.edges_per_token, weights.shape[-1])
            column = torch.arange(weights.shape[-1], device=weights.device)
            seen = column <= positions[:, None, None]
            strongest = torch.where(seen, weights, 0).mean(2).topk(k, dim=-1)
            for name, found in zip(("edge_weight", "edge_slot"), strongest, strict=True):
                kept = self._tensors[name]
                kept[rows, :, positions, :k] = found.transpose(0, 1).to(kept.dtype)

    def _add_edges(self, group: Group, weights: Tensor, where: tuple[Tensor, Tensor]) -> None:
        k = min(self.recording.shape.edges_per_token, weights.shape[-1])
        strongest = weights.mean(2, dtype=torch.float32).topk(k, dim=-1)
        for name, found in zip(("edge_weight", "edge_slot"), strongest, strict=True):
            kept, (rows, positions) = self._tensors[name], where
            kept[rows, :, positions, :k] = group.real_tokens(found.transpose(1, 2)).to(kept.dtype)

    def _write(
        self, name: str, where: tuple[Tensor, Tensor], values: Float[Tensor, "real *rest"]
    ) -> None:
        rows, positions = where
        self._tensors[name][rows, :, :, positions] = values.float()


def reduce_rows(copies: Sequence[RowCopy]) -> Reduced:
    """The fields of some answers' traces. Those of columns that were not recorded are empty."""
    rows = _Rows(copies)
    fields, empty = dict(rows.reduce()), torch.empty(0, device=rows.device)
    return Reduced(**{name: fields.get(name, empty) for name in Reduced.__dataclass_fields__})


class _Rows:
    """Copies of several rows, joined."""

    used: Bool[Tensor, "rows tokens"]
    index: Int[Tensor, "rows tokens"]

    def __init__(self, copies: Sequence[RowCopy]) -> None:
        self.columns = copies[0].columns
        self.device = next(iter(copies[0].tensors.values()), torch.empty(0)).device
        sizes = [[copy.length, copy.answer] for copy in copies]
        self.lengths, self.answers = to_device(sizes, self.device).T
        self._longest = max(copy.length for copy in copies)
        self._is_padded = any(copy.length < self._longest for copy in copies)
        places = torch.arange(self._longest, device=self.device)
        self.index = places.expand(len(copies), -1)
        self.used = places < self.lengths[:, None]
        self._copies = copies

    def reduce(self) -> Iterator[tuple[str, Tensor]]:
        """The fields that were recorded, one after the other."""
        recorded = self._copies[0].tensors
        if "last_hidden" in recorded:
            yield "last_hidden", self._join("last_hidden")
        if "answer_sum" in recorded:
            count = self.answers.clamp(min=1)[:, None, None]
            yield "answer_hidden", self._join("answer_sum") / count
        if "nodes" in recorded:
            yield "nodes", self._join("nodes")
        if "edge_weight" in recorded:
            weight = self._join("edge_weight")
            yield "edge_source", self._join("edge_slot").where(weight > 0, 0)
            yield "edge_weight", weight
        if "diagonal" in recorded and "attention_log_diagonal" in self.columns:
            yield "attention_log_diagonal", self._mask(log_diagonal(self._join("diagonal")), 2)
        if "received" in recorded:
            both = self._join("received"), self._join("diagonal")
            yield "laplacian_diagonal", laplacian(*both, self.lengths, self.index)
        if "masses" in recorded:
            sizes = self.lengths, self.answers
            yield "lookback", lookback(self._join("masses"), *sizes, self.index, self.used)

    def _join(self, name: str) -> Tensor:
        along = PER_TOKEN.get(name)
        if self._copies[0].row is not None:
            return self._take(self._copies[0].tensors[name], along)
        parts = [copy.tensors[name] for copy in self._copies]
        if along is None:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        if len({part.shape for part in parts}) == 1:
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            joined = _pad(parts, along)
        return self._mask(joined.narrow(along + 1, 0, self._longest), along)

    def _take(self, every: Tensor, along: int | None) -> Tensor:
        """Out of the record of all rows."""
        if along is not None:
            every = every.narrow(along + 1, 0, self._longest)
        taken = every.index_select(0, to_device([copy.row for copy in self._copies], self.device))
        return taken if along is None else self._mask(taken, along)

    def _mask(self, values: Tensor, along: int) -> Tensor:
        """Zeros after each row's tokens, where tokens may have been recorded that an answer does
        not have."""
        if not self._is_padded:
            return values
        behind = [1] * (values.dim() - along - 2)
        used = self.used.view(len(self.used), *[1] * along, -1, *behind)
        return torch.where(used, values, 0)


def _pad(rows: Sequence[Tensor], along: int) -> Tensor:
    """Join rows `[1, ...]`, with zeros where one is shorter along that dimension of a row."""
    longest = max(rows, key=lambda row: row.shape[along + 1])
    joined = longest.new_zeros(len(rows), *longest.shape[1:])
    for place, row in zip(joined.split(1), rows, strict=True):
        place.narrow(along + 1, 0, row.shape[along + 1]).copy_(row)
    return joined


class Reading:
    """Values on their way from the device to the host."""

    def __init__(self, values: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values = pinned.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)
            self._event.record()

    def get(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._values


def record_dtype(model: PreTrainedModel) -> torch.dtype:
    """The precision of what is recorded: that of the model."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32
