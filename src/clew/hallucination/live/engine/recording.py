"""What is recorded of running answers: the same as capture stores, computed once per pass for all
layers and rows together, so that it costs little."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clew.hallucination.live.engine.copies import PER_TOKEN, RowCopy
from clew.hallucination.live.engine.passes import Group, Pass
from clew.hallucination.traces.basis import Basis
from clew.hallucination.traces.compact import COLUMNS
from clew.hallucination.traces.schema import TraceShape

_OF_ATTENTION = frozenset(
    {"edges", "attention_log_diagonal", "laplacian_diagonal", "lookback"},
)
# Copies on a GPU have room for a multiple of this many tokens: those of one size join quickly.
_ROUNDED = {"cuda": 128}


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
        return bool(self.columns & _OF_ATTENTION)


class RowRecord:
    """The record of every row of the engine, filled pass by pass. `version` counts how often its
    tensors were replaced."""

    def __init__(self, recording: Recording, device: torch.device, dtype: torch.dtype) -> None:
        self.recording, self._device, self._dtype = recording, device, dtype
        self._basis = recording.basis.to(device, dtype) if recording.basis else None
        self._token_basis = _of_layers(self._basis, recording.token_layers)
        self.rows = self.capacity = self.version = 0
        self._tensors: dict[str, Tensor] = {}
        self._prompts = torch.zeros(0, dtype=torch.long, device=device)

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
        for name in ("received", "answer_sum"):
            if name in self._tensors:
                self._tensors[name].select(0, row).zero_()

    def add(self, planned: Pass, alive: Bool[Tensor, " tokens"] | None = None) -> None:
        """Add what was kept of a pass. Tokens that are not `alive` are not part of their answers,
        which had ended before them."""
        if planned.states:
            self._add_states(planned, torch.stack(planned.states), alive)
        for group in planned.groups:
            if group.weights:
                self._add_weights(group, planned, alive)
        if planned.weights is not None and alive is not None:
            self._add_all_weights(planned.weights, planned, alive)

    def project_tokens(self, planned: Pass) -> Float[Tensor, "segments layers node_dim"]:
        """The projected state of each segment's last token, in the layers that were asked for."""
        layers = [planned.states[layer][planned.last] for layer in self.recording.token_layers]
        return _project(self._token_basis, torch.stack(layers)).transpose(0, 1)

    def copy(self, row: int, length: int, answer: int) -> RowCopy:
        """What has been recorded of one row: `length` tokens, the last `answer` of which are the
        answer. It is reduced later: the engine's thread does not take the time."""
        step = _ROUNDED.get(self._device.type, 1)
        room = min(-(-length // step) * step, self.capacity)
        tensors = {name: self._of_row(name, row, room).clone() for name in self._tensors}
        return RowCopy(
            tensors=tensors, columns=self.recording.columns, length=length, answer=answer
        )

    def copy_tokens(self, row: int, length: int) -> dict[str, Tensor]:
        """The record of the first tokens of a row, while nothing follows them."""
        return {
            name: self._of_row(name, row, length).clone()
            for name in self._tensors
            if name in PER_TOKEN
        }

    def paste_tokens(self, row: int, tokens: dict[str, Tensor]) -> None:
        for name, values in tokens.items():
            along = PER_TOKEN[name] + 1
            self._tensors[name][row : row + 1].narrow(along, 0, values.shape[along]).copy_(values)

    def _of_row(self, name: str, row: int, length: int) -> Tensor:
        tensor = self._tensors[name][row : row + 1]
        along = PER_TOKEN.get(name)
        return tensor if along is None else tensor.narrow(along + 1, 0, length)

    def _shapes(self, slots: int) -> dict[str, tuple[int, ...]]:
        """The tensors that the columns require, each without its first dimension, the rows."""
        shape, columns = self.recording.shape, self.recording.columns
        layers, heads, k = shape.layers, shape.heads, shape.edges_per_token
        states = (layers, shape.dim)
        needed: dict[str, tuple[tuple[int, ...], set[str]]] = {
            "last_hidden": (states, {"last_hidden"}),
            "answer_sum": (states, {"answer_hidden"}),
            "nodes": ((layers, slots, shape.node_dim), {"nodes"}),
            "edge_weight": ((layers, slots, k), {"edges"}),
            "edge_slot": ((layers, slots, k), {"edges"}),
            "diagonal": (
                (layers, heads, slots),
                {"attention_log_diagonal", "laplacian_diagonal"},
            ),
            "received": ((layers, heads, slots), {"laplacian_diagonal"}),
            "masses": ((layers, heads, slots, 2), {"lookback"}),
        }
        return {name: size for name, (size, of) in needed.items() if columns & of}

    def _add_states(
        self, planned: Pass, states: Float[Tensor, "layers tokens dim"], alive: Tensor | None
    ) -> None:
        if planned.uses_kernels and alive is not None:
            self._add_with_kernels(planned, states, alive)
        else:
            self._add_plainly(planned, states, alive)
        if "nodes" in self._tensors:
            nodes = _project(self._basis, states).transpose(0, 1)
            self._tensors["nodes"][planned.rows, :, planned.positions] = nodes

    def _add_with_kernels(self, planned: Pass, states: Tensor, alive: Tensor) -> None:
        from clew.hallucination.live.engine.kernels import keep_last, sum_states

        rows, tensors = planned.rows, self._tensors
        if "last_hidden" in tensors:
            keep_last(states, rows, planned.last, alive, tensors["last_hidden"])
        if "answer_sum" in tensors:
            where = rows, planned.positions
            sum_states(states, where, self._prompts, alive, tensors["answer_sum"])

    def _add_plainly(self, planned: Pass, states: Tensor, alive: Tensor | None) -> None:
        tensors = self._tensors
        if "last_hidden" in tensors:
            rows, kept = planned.rows[planned.last], tensors["last_hidden"]
            last = states[:, planned.last].transpose(0, 1).to(self._dtype)
            if alive is not None:
                last = torch.where(alive[planned.last][:, None, None], last, kept[rows])
            kept[rows] = last
        if "answer_sum" in tensors:
            # Selected, not multiplied by 0: infinities in a prompt must not reach the sum.
            is_answer = planned.positions >= self._prompts[planned.rows]
            is_answer = is_answer if alive is None else is_answer & alive
            answer = torch.where(is_answer[None, :, None], states, 0).transpose(0, 1).float()
            tensors["answer_sum"].index_add_(0, planned.rows, answer)

    def _add_weights(self, group: Group, planned: Pass, alive: Tensor | None) -> None:
        """Reduce the attention of one group of segments, all layers at once."""
        weights = group.of_segments(torch.stack(group.weights, dim=1))
        here = slice(group.first, group.first + group.count)
        tokens = _Tokens(
            rows=group.rows,
            token_rows=planned.rows[here],
            token_positions=planned.positions[here],
            positions=group.of_segments(group.positions),
        )
        if "edge_weight" in self._tensors:
            self._add_edges(group, weights, tokens)
        if "diagonal" in self._tensors:
            own = tokens.positions.clamp(max=planned.columns - 1)[:, None, None, :, None]
            diagonal = weights.gather(-1, own.expand(*weights.shape[:4], 1))[..., 0]
            self._write("diagonal", tokens, group.real_tokens(diagonal.permute(0, 3, 1, 2)))
        if "received" in self._tensors:
            received = self._tensors["received"][..., : planned.columns]
            given = group.sum_tokens(weights).float()
            if alive is not None:  # each token is a segment of its own
                given = given * alive[:, None, None, None]
            received.index_add_(0, tokens.rows, given)
        if "masses" in self._tensors:
            self._add_masses(group, weights, tokens)

    def _add_all_weights(
        self, weights: Float[Tensor, "layers tokens heads columns"], planned: Pass, alive: Tensor
    ) -> None:
        """Reduce the attention of all layers and tokens with kernels of their own."""
        from clew.hallucination.live.engine.kernels import reduce_weights

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

    def _add_edges(self, group: Group, weights: Tensor, tokens: "_Tokens") -> None:
        k = min(self.recording.shape.edges_per_token, weights.shape[-1])
        strongest = weights.mean(2, dtype=torch.float32).topk(k, dim=-1)
        for name, found in zip(("edge_weight", "edge_slot"), strongest, strict=True):
            kept = self._tensors[name]
            values = group.real_tokens(found.transpose(1, 2)).to(kept.dtype)
            kept[tokens.token_rows, :, tokens.token_positions, :k] = values

    def _add_masses(self, group: Group, weights: Tensor, tokens: "_Tokens") -> None:
        column = torch.arange(weights.shape[-1], device=weights.device)
        in_prompt = column < self._prompts[tokens.rows][:, None]
        sides = torch.stack([in_prompt, ~in_prompt], dim=-1).to(weights.dtype)
        masses = (weights.flatten(1, 3) @ sides).view(*weights.shape[:4], 2)
        self._write("masses", tokens, group.real_tokens(masses.permute(0, 3, 1, 2, 4)))

    def _write(self, name: str, tokens: "_Tokens", values: Float[Tensor, "real *rest"]) -> None:
        self._tensors[name][tokens.token_rows, :, :, tokens.token_positions] = values.float()


@dataclass(frozen=True, kw_only=True)
class _Tokens:
    """Where the tokens of a group are: the row of each segment, row and position of each token,
    and the positions with padding."""

    rows: Int[Tensor, " segments"]
    token_rows: Int[Tensor, " real"]
    token_positions: Int[Tensor, " real"]
    positions: Int[Tensor, "segments tokens"]


def _of_layers(basis: Basis | None, layers: Sequence[int]) -> Basis | None:
    if basis is None:
        return None
    some = list(layers)
    return Basis(mean=basis.mean[some], components=basis.components[some])


def _project(
    basis: Basis | None, states: Float[Tensor, "layers tokens dim"]
) -> Float[Tensor, "layers tokens node_dim"]:
    """Project the states of all layers of a basis at once."""
    assert basis is not None  # what is projected is not recorded without one
    centered = states.to(basis.components.dtype) - basis.mean[:, None]
    return (centered @ basis.components).float()
