"""What a pass is made of: tokens of many rows in one sequence, the groups that attend together, the
KV cache of the rows, and the attention that keeps them apart."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface

from clew.hallucination.llm.own_caches import OwnCaches

# Under this name the model's layers find the attention below.
ATTENTION = "clew_rows"
# If the rows of a step lie apart, those between are computed as well, up to this many times as many
# rows; otherwise the keys and values are copied.
_MAX_SPREAD = 2

# Keys and values of the first tokens of a row, of every layer.
CachedTokens = list[tuple[Tensor, Tensor] | None]


class RowCache:
    """The KV cache: keys and values of `rows` rows with room for `capacity` tokens each, and of a
    spare row that tokens without a request are written to. A row's tokens start at 0. Each layer is
    allocated when its first keys arrive, which have the model's sizes. `version` counts how often
    the tensors were replaced."""

    def __init__(self, layers: int) -> None:
        self.rows = self.capacity = self.version = 0
        self.layers = layers
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * layers

    @property
    def is_allocated(self) -> bool:
        """Whether every layer has got keys."""
        return None not in self._layers

    @property
    def fits_kernels(self) -> bool:
        """Whether keys and values have the same sizes, as the kernels of a GPU expect."""
        return all(layer and layer[0].shape == layer[1].shape for layer in self._layers)

    def prepare_resize(self, rows: int, capacity: int) -> Callable[[], None]:
        """Allocate other sizes, with what fits of the tokens; the returned function puts them in
        place."""
        new = [
            layer and (_resized(layer[0], rows, capacity), _resized(layer[1], rows, capacity))
            for layer in self._layers
        ]

        def resize() -> None:
            self.rows, self.capacity, self._layers = rows, capacity, new
            self.version += 1

        return resize

    def layer(
        self,
        number: int,
        keys: Float[Tensor, "kv_heads tokens dim"],
        values: Float[Tensor, "kv_heads tokens value_dim"],
    ) -> tuple[Float[Tensor, "rows kv_heads capacity dim"], Tensor]:
        """All keys and values of one layer, which has got these new ones."""
        layer = self._layers[number]
        if layer is None:
            layer = self._layers[number] = self._allocate(keys), self._allocate(values)
        return layer

    def copy_tokens(self, row: int, length: int) -> CachedTokens:
        return [
            layer and (layer[0][row, :, :length].clone(), layer[1][row, :, :length].clone())
            for layer in self._layers
        ]

    def paste_tokens(self, rows: int | slice, tokens: CachedTokens) -> None:
        for layer, copied in zip(self._layers, tokens, strict=True):
            for all_rows, values in zip(layer or (), copied or (), strict=True):
                all_rows[rows, :, : values.shape[1]] = values

    def _allocate(self, states: Float[Tensor, "kv_heads tokens dim"]) -> Tensor:
        heads, _, dim = states.shape
        return states.new_zeros(self.rows + 1, heads, self.capacity, dim)


def _resized(old: Tensor, rows: int, capacity: int) -> Tensor:
    old_rows, heads, old_capacity, dim = old.shape
    new = old.new_zeros(rows + 1, heads, capacity, dim)
    rows, capacity = min(old_rows - 1, rows), min(old_capacity, capacity)
    new[:rows, :, :capacity] = old[:rows, :, :capacity]
    return new


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tokens of one row to pass, from position `start` on. `wants_logits`: those of the last."""

    row: int
    tokens: Sequence[int]
    start: int
    wants_logits: bool = True


SomeSegment = TypeVar("SomeSegment", bound=Segment)


@dataclass(kw_only=True)
class Group:
    """Segments that attend together: those of one token each, or longer ones, padded.
    Attention is computed in `lanes`, which are rows of the cache: a slice if possible."""

    rows: Int[Tensor, " segments"]
    sizes: Int[Tensor, " segments"]
    lanes: slice | Int[Tensor, " lanes"]
    # Of each segment, its lane (None: its own number), and of each of its tokens, the place in the
    # packed sequence (None: in order from `first`).
    lane: Int[Tensor, " segments"] | None
    first: int
    packed: Int[Tensor, "segments tokens"] | None
    positions: Int[Tensor, "lanes tokens"]
    # Which tokens are not padding, as places in `segments x tokens`; None if all.
    real: Int[Tensor, " real"] | None
    count: int
    width: int
    weights: Float[Tensor, "lanes layers heads tokens columns"] | None = None
    masks: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def lane_count(self) -> int:
        return len(self.positions)

    @property
    def end(self) -> int:
        return self.first + self.count

    def room_for_weights(
        self, layer: int, layers: int, heads: int, columns: int, *, like: Tensor
    ) -> Float[Tensor, "lanes heads tokens columns"]:
        """Where the attention of a layer is kept, among that of all: joined later, it would be
        there twice. It is 0 where nothing is written."""
        if self.weights is None:
            size = self.lane_count, layers, heads, self.width, columns
            self.weights = like.new_zeros(size)
        return self.weights[:, layer]

    @cached_property
    def first_tokens(self) -> tuple[Int[Tensor, " segments"], Int[Tensor, " segments"]]:
        """Of each segment of several tokens, the place of the first in the group, and its
        position."""
        assert self.packed is not None
        return self.packed[:, 0] - self.first, self.positions[:, 0].contiguous()

    def query(self, packed: Float[Tensor, "heads tokens dim"]) -> Float[Tensor, "lanes heads t d"]:
        """The queries in lanes; padding repeats some token."""
        if self.packed is None:
            query = packed[:, self.first : self.first + len(self.rows)].transpose(0, 1)
            query = query.unsqueeze(2)
        elif self.real is None:
            query = packed[:, self.first : self.end].unflatten(1, (-1, self.width)).transpose(0, 1)
        else:
            query = packed[:, self.packed].transpose(0, 1)
        if self.lane is None:
            return query
        spread = query.new_zeros(self.lane_count, *query.shape[1:])
        return spread.index_copy_(0, self.lane, query)

    def unpack(self, lanes: Float[Tensor, "lanes tokens *rest"]) -> Float[Tensor, "real *rest"]:
        """The values of the tokens that are not padding, in packed order."""
        return self.real_tokens(self.of_segments(lanes))

    def of_segments(self, lanes: Float[Tensor, "lanes *rest"]) -> Float[Tensor, "segments *rest"]:
        return lanes if self.lane is None else lanes.index_select(0, self.lane)

    def real_tokens(
        self, values: Float[Tensor, "segments tokens *rest"]
    ) -> Float[Tensor, "real *rest"]:
        """The values of the tokens that are not padding, in packed order."""
        flat = values.flatten(0, 1)
        return flat if self.real is None else flat.index_select(0, self.real)

    def sum_tokens(
        self, weights: Float[Tensor, "segments layers heads tokens columns"]
    ) -> Float[Tensor, "segments layers heads columns"]:
        """The sum over the tokens that are not padding."""
        if self.width == 1:
            return weights[..., 0, :]
        is_real = torch.arange(self.width, device=weights.device) < self.sizes[:, None]
        return (is_real[:, None, None, None].to(weights.dtype) @ weights)[..., 0, :]

    def mask(
        self,
        kv_heads: int,
        heads: int,
        columns: int,
        dtype: Any,
        *,
        window: int | None,
        chunk: int | None,
    ) -> Tensor:
        """Added to the scores: 0 where a token may look, at most so far back, or in its chunk."""
        key = (kv_heads, window, chunk)
        if key not in self.masks:
            column = torch.arange(columns, device=self.positions.device)
            position = self.positions[..., None]
            visible = column <= position
            if window is not None:
                visible &= column > position - window
            if chunk is not None:
                visible &= column >= position - position % chunk
            hidden = torch.where(visible, 0.0, torch.finfo(dtype).min).to(dtype)
            repeats = heads // kv_heads if self.width > 1 else 1
            spread = hidden[:, None, None].expand(-1, kv_heads, repeats, -1, -1)
            self.masks[key] = spread.reshape(-1, repeats * self.width, columns)
        return self.masks[key]


@dataclass(kw_only=True)
class Pass:
    """What one pass does: tokens, their rows and positions, and what is kept of it: each layer's
    states, and the attention weights if `keeps_weights`. `last` are the last tokens of the
    segments; `uses_kernels` is for a GPU, where each token is a group of its own; `has_kernels`:
    tokens are written to the cache, prompts attend, and states are recorded by kernels."""

    groups: list[Group]
    tokens: Int[Tensor, " tokens"]
    rows: Int[Tensor, " tokens"]
    positions: Int[Tensor, " tokens"]
    last: Int[Tensor, " segments"]
    columns: int
    keeps_weights: bool
    cache: RowCache | OwnCaches
    uses_kernels: bool = False
    has_kernels: bool = False
    segments: Sequence[Segment] = ()
    # What comes before these tokens is needed again, behind which others replace them.
    keeps_start: bool = False
    # Nothing comes before or after these tokens: their keys and values need no cache.
    is_whole: bool = False
    # On a GPU, where the kernels put the attention weights of all layers.
    weights: Float[Tensor, "layers tokens heads columns"] | None = None
    states: list[Float[Tensor, "tokens dim"]] = field(default_factory=list)

    def on_hidden(self, _layer: int, states: Float[Tensor, "1 tokens dim"]) -> None:
        self.states.append(states[0])

    def on_attention(self, layer: int, weights: Tensor) -> None:
        """Never called: the weights are kept where they are computed."""


# The pass whose attention is computed.
current_pass: ContextVar[Pass] = ContextVar("current_pass")


def make_group(
    segments: Sequence[Segment], first: int, device: torch.device, *, spreads: bool
) -> Group:
    rows = [segment.row for segment in segments]
    lengths = [len(segment.tokens) for segment in segments]
    width, low, high = max(lengths), min(rows), max(rows) + 1
    starts = to_device([segment.start for segment in segments], device)
    positions = starts[:, None] + torch.arange(width, device=device)
    lanes: slice | Tensor = slice(low, high)
    lane = None
    if high - low > _MAX_SPREAD * len(rows) or width > 1 or not spreads:
        lanes = to_device(rows, device)
    elif rows != list(range(low, high)):
        lane = to_device(rows, device) - low
        positions = positions.new_zeros(high - low, width).index_copy_(0, lane, positions)
    packed, real = _pack(lengths, first, device) if width > 1 else (None, None)
    return Group(
        rows=to_device(rows, device),
        sizes=to_device(lengths, device),
        lanes=lanes,
        lane=lane,
        first=first,
        packed=packed,
        positions=positions,
        real=real,
        count=sum(lengths),
        width=width,
    )


def _pack(
    lengths: Sequence[int], first: int, device: torch.device
) -> tuple[Int[Tensor, "segments tokens"], Int[Tensor, " real"] | None]:
    """The place of each token in the packed sequence, and which tokens are not padding."""
    sizes, width = torch.tensor(lengths), max(lengths)
    place = torch.arange(width).expand(len(lengths), -1)
    is_real: Bool[Tensor, "segments tokens"] = place < sizes[:, None]
    begins = first + sizes.cumsum(0) - sizes
    packed = begins[:, None] + torch.minimum(place, sizes[:, None] - 1)
    real = None if bool(is_real.all()) else is_real.flatten().nonzero()[:, 0]
    return to_device(packed, device), None if real is None else to_device(real, device)


def to_device(numbers: Sequence[Any] | Tensor, device: torch.device) -> Tensor:
    """Numbers on the device; a GPU is not waited for."""
    found = torch.as_tensor(numbers)
    return (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)


def attend_to_rows(
    module: nn.Module,
    query: Float[Tensor, "1 heads tokens dim"],
    key: Float[Tensor, "1 kv_heads tokens dim"],
    value: Float[Tensor, "1 kv_heads tokens dim"],
    _mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "1 tokens heads dim"], None]:
    """The attention of a packed pass: each token looks at its own row of the cache, up to
    itself."""
    planned, layer = current_pass.get(), int(module.layer_idx)  # type: ignore[arg-type]
    assert isinstance(planned.cache, RowCache)
    here, home = query.device, planned.rows.device
    if here != home:  # a layer on another GPU: the rows of all layers are on the first one
        query, key, value = (one.to(home) for one in (query, key, value))
        s_aux = None if s_aux is None else s_aux.to(home)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if planned.uses_kernels:
        from clew.hallucination.llm.kernels import attend_packed

        cached = planned.cache.layer(layer, key[0], value[0])
        output = attend_packed(
            query[0],
            key[0],
            value[0],
            cached,
            (planned.rows, planned.positions),
            scaling=scaling,
            weights=None if planned.weights is None else planned.weights[layer],
            softcap=softcap,
            window=sliding_window,
        )
        return output[None], None
    cached = key[0], value[0]
    if not planned.is_whole:
        cached = planned.cache.layer(layer, *cached)
        if planned.has_kernels:
            from clew.hallucination.llm.kernels import write_tokens

            write_tokens(key[0], value[0], cached, (planned.rows, planned.positions))
        else:
            for rows, new in zip(cached, (key, value), strict=True):
                rows[planned.rows, :, planned.positions] = new[0].transpose(0, 1)
    rule = _Rule(scaling, softcap, sliding_window, chunk_of(module), s_aux)
    parts = []
    for group in planned.groups:
        kept = None
        if planned.keeps_weights:
            size = planned.cache.layers, query.shape[1], planned.columns
            kept = group.room_for_weights(layer, *size, like=query)
        parts.append(_attend(group, query[0], cached, planned, rule, kept))
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output[None].to(here), None


@dataclass(frozen=True)
class _Rule:
    """How a layer weighs what its tokens see."""

    scaling: float
    softcap: float | None
    window: int | None
    chunk: int | None
    sinks: Tensor | None

    @property
    def has_kernel(self) -> bool:
        return self.chunk is None and self.sinks is None


def _attend(
    group: Group,
    query: Float[Tensor, "heads tokens dim"],
    cached: tuple[Tensor, Tensor],
    planned: Pass,
    rule: _Rule,
    kept: Float[Tensor, "lanes heads tokens columns"] | None,
) -> Float[Tensor, "real heads dim"]:
    """The attention of one group; on a GPU, segments of several tokens are not copied for it."""
    if planned.has_kernels and group.width > 1 and rule.has_kernel:
        from clew.hallucination.llm.kernels import attend_segments

        here = slice(group.first, group.end)
        begins, starts = group.first_tokens
        return attend_segments(
            query[:, here],
            (cached[0][:, here], cached[1][:, here]) if planned.is_whole else cached,
            begins if planned.is_whole else group.rows,
            (begins, group.sizes, starts),
            group.width,
            scaling=rule.scaling,
            weights=kept,
            softcap=rule.softcap,
            window=rule.window,
        )
    if planned.is_whole:
        lanes = tuple(map(group.query, cached))
    else:
        lanes = tuple(rows[:, :, : planned.columns][group.lanes] for rows in cached)
    keys, values = (one.flatten(0, 1) for one in lanes)
    weights = _softmax(_scores(group, query, keys, rule), rule.sinks, query.dtype)
    if kept is not None:
        kept.copy_(weights)
    mixed = torch.bmm(weights.view(len(keys), -1, planned.columns), values)
    mixed = mixed.view(group.lane_count, len(query), group.width, -1).transpose(1, 2)
    return group.unpack(mixed)


def chunk_of(module: nn.Module) -> int | None:
    """The size of the chunks that tokens of this layer look at, if it has any (Llama 4)."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    if not kinds or kinds[int(module.layer_idx)] != "chunked_attention":  # type: ignore[arg-type]
        return None
    return int(module.config.attention_chunk_size)  # type: ignore[union-attr, arg-type]


def _scores(
    group: Group,
    query: Float[Tensor, "heads tokens dim"],
    keys: Float[Tensor, "lanes_kv_heads columns dim"],
    rule: _Rule,
) -> Float[Tensor, "lanes heads tokens columns"]:
    heads, columns = query.shape[0], keys.shape[1]
    lanes, width = group.lane_count, group.width
    kv_heads = len(keys) // lanes
    mask = group.mask(kv_heads, heads, columns, query.dtype, window=rule.window, chunk=rule.chunk)
    asked = group.query(query).reshape(len(keys), -1, query.shape[-1])
    if rule.softcap is None:
        scores = torch.baddbmm(mask, asked, keys.transpose(1, 2), alpha=rule.scaling)
    else:
        raw = torch.bmm(asked, keys.transpose(1, 2)) * (rule.scaling / rule.softcap)
        scores = raw.tanh() * rule.softcap + mask
    return scores.view(lanes, heads, width, columns)


def _softmax(
    scores: Float[Tensor, "lanes heads tokens columns"], sinks: Tensor | None, dtype: torch.dtype
) -> Float[Tensor, "lanes heads tokens columns"]:
    """Attention weights; `sinks` are scores of a column of their own, which is dropped."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(dtype)
    column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1).to(scores.dtype)
    joined = torch.cat([scores, column], dim=-1).softmax(-1, dtype=torch.float32)
    return joined[..., :-1].to(dtype)


AttentionInterface.register(ATTENTION, attend_to_rows)
