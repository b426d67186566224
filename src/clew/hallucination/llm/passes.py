"""One pass of the model over tokens of many requests, packed into one sequence: the next token of
every running answer together with parts of new prompts. Only the attention knows the rows of the KV
cache."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, groupby
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from clew.base.errors import InputError
from clew.base.memory import is_out_of_memory
from clew.hallucination.llm.device_map import can_replay, is_spread, model_device
from clew.hallucination.llm.fused import fused_parts
from clew.hallucination.llm.observe import ModelObserver, accepted_arguments
from clew.hallucination.llm.own_caches import OwnCaches, carries_states, name_cache
from clew.hallucination.llm.packing import (
    ATTENTION,
    Group,
    Pass,
    RowCache,
    Segment,
    SomeSegment,
    current_pass,
    make_group,
    to_device,
)

COLUMNS_STEP = 32
# A pass keeps the attention weights of all layers until they are reduced.
_MAX_WEIGHTS_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
_COPIES = 4
# Largest relative difference of logits that rounding can explain.
_TRIAL_TOLERANCE = {torch.float32: 1e-2}
# What a pass may raise: whatever it is, the engine continues with other requests.
PASS_ERRORS = (
    *(RuntimeError, MemoryError, ValueError, TypeError, LookupError, ArithmeticError),
    *(AttributeError, AssertionError),
)
# Whether rows of a model that pass packed are as they are alone, and whether the kernels of its GPU
# can be used: tried once.
_tried: WeakKeyDictionary[PreTrainedModel, tuple[bool, bool]] = WeakKeyDictionary()


class PackedModel:
    """A model with the cache of its rows. One thread may use it at a time. `packs`: the tokens of a
    pass are one sequence, and our attention keeps the rows apart. A model that does not use the
    attention it is given in all layers passes those rows together that have as many tokens, with
    its own attention and what it keeps itself."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.observer = model, ModelObserver(model)
        self._arguments, self._fused = accepted_arguments(model), fused_parts(model)
        self._cache_name: str | None = name_cache(model)
        self.on_passed: Callable[[int], object] = lambda _tokens: None
        self.packs, self.fits_kernels = True, False
        self.joins_rows = self.continues = True
        self.cache = self._make_cache()
        if not self._can_pack():
            self.stop_packing()

    @property
    def device(self) -> torch.device:
        return model_device(self.model)

    @property
    def has_kernels(self) -> bool:
        """Whether the kernels of a GPU can be used."""
        fits = self.packs and self.fits_kernels and can_replay(self.model)
        return fits and torch.utils._triton.has_triton()

    def with_own_cache(self) -> "PackedModel":
        """The same model with other rows."""
        other = copy.copy(self)
        other.cache = self._make_cache()
        return other

    def _make_cache(self) -> RowCache | OwnCaches:
        if self.packs:
            return RowCache(self.observer.layers)
        return OwnCaches(self.observer.attention_layers, self._cache_name)

    def stop_packing(self) -> None:
        """Pass rows with the model's own attention from now on: with what it keeps of their tokens,
        several rows at once and in parts only where that gives the same."""
        self.packs = False
        if not self._agrees(rows=1, parts=(4, 1)):
            self._cache_name = None
            self._refuse_looking_ahead()
        self.joins_rows = self._agrees(rows=2, parts=(4, 1))
        self.continues = self._agrees(rows=1, parts=(4, 3))
        self.cache = self._make_cache()

    def most_tokens(self, most: int, longest: int, *, keeps_weights: bool) -> int:
        """How many tokens, of `most`, there is memory for in a pass where rows have up to `longest`
        tokens. If the attention weights are kept, those of all layers are until they are reduced;
        otherwise a layer computes with a few copies."""
        columns, kind = 1 << longest.bit_length(), self.device.type
        copies = self.observer.attention_layers if keeps_weights else _COPIES
        a_token = max(1, copies * self.observer.heads) * columns * 4
        return max(1, min(most, _MAX_WEIGHTS_BYTES.get(kind, 1 << 28) // a_token))

    def in_order(self, segments: Sequence[SomeSegment]) -> list[SomeSegment]:
        """As a pass takes them: those of one token first, by row."""
        if not self.packs:
            return sorted(segments, key=lambda s: (s.start, len(s.tokens), s.row))
        steps = sorted((s for s in segments if len(s.tokens) == 1), key=lambda s: s.row)
        return [*steps, *(s for s in segments if len(s.tokens) > 1)]

    def plan(
        self,
        ordered: Sequence[Segment],
        *,
        keeps_weights: bool = False,
        is_whole: bool = False,
        keeps_start: bool = False,
    ) -> Pass:
        """Pack segments that are `in_order`. Those that are `is_whole` are not kept in the cache,
        if all have several tokens."""
        device = self.device
        lengths = [len(segment.tokens) for segment in ordered]
        tokens = [token for segment in ordered for token in segment.tokens]
        rows = [s.row for s, length in zip(ordered, lengths, strict=True) for _ in range(length)]
        positions = [p for s in ordered for p in range(s.start, s.start + len(s.tokens))]
        longest = max(positions) + 1
        columns = min(-(-longest // COLUMNS_STEP) * COLUMNS_STEP, self.cache.capacity)
        is_whole = is_whole and self.packs and min(lengths) > 1
        return Pass(
            groups=self._group(ordered),
            tokens=to_device(tokens, device),
            rows=to_device(rows, device),
            positions=to_device(positions, device),
            last=to_device([end - 1 for end in accumulate(lengths)], device),
            columns=longest if is_whole else columns,
            keeps_weights=keeps_weights,
            cache=self.cache,
            is_whole=is_whole,
            keeps_start=keeps_start,
            has_kernels=self.has_kernels,
            segments=ordered,
        )

    def _group(self, ordered: Sequence[Segment]) -> list[Group]:
        groups, first = [], 0
        for _, some in groupby(ordered, self._group_key):
            segments = list(some)
            groups.append(make_group(segments, first, self.device, spreads=self.packs))
            first += groups[-1].count
        return groups

    def _group_key(self, segment: Segment) -> Any:
        if self.packs:
            return len(segment.tokens) == 1
        return segment.start, len(segment.tokens), None if self.joins_rows else segment.row

    @torch.inference_mode()
    def _can_pack(self) -> bool:
        """Pass one token: whether all layers have used our attention, and only that."""
        if self.observer.without_attention or carries_states(self.model):
            return False
        trial = self.with_own_cache()
        trial.cache.prepare_resize(1, COLUMNS_STEP)()
        planned = trial.plan([Segment(row=0, tokens=[0], start=0)])
        try:
            trial.run(planned, planned.last)
        except PASS_ERRORS as error:
            if is_out_of_memory(error):
                raise
            return False
        assert isinstance(trial.cache, RowCache)
        self.fits_kernels = trial.cache.fits_kernels
        if not trial.cache.is_allocated:
            return False
        if is_spread(self.model):  # weights on disk would be read for every pass
            return True
        if self.model not in _tried:
            self.fits_kernels = self.fits_kernels and self._runs_kernels()
            agrees = self._agrees(rows=2, parts=(4, 1))
            if not agrees and self._fused.drop_products():  # whose layout its layers do not expect
                agrees = self._agrees(rows=2, parts=(4, 1))
            _tried[self.model] = agrees, self.fits_kernels
        agrees, self.fits_kernels = _tried[self.model]
        return agrees

    def _runs_kernels(self) -> bool:
        """Whether the kernels run on this GPU: an older one may lack the memory for their tiles."""
        try:
            return not self.has_kernels or self._agrees(rows=1, parts=(4, 1))
        except Exception as error:  # whatever Triton raises: its errors have no other base
            if is_out_of_memory(error):
                raise
            return False

    @torch.inference_mode()
    def _refuse_looking_ahead(self) -> None:
        """Raise InputError for a model whose tokens see those after them."""
        tokens = torch.arange(1, 6, device=self.device)[None]
        whole, part = (
            self.model(input_ids=some, use_cache=False).logits[:, :4].float()
            for some in (tokens, tokens[:, :4])
        )
        if (whole - part).norm() > 0.3 * whole.norm():
            raise InputError(
                f"{type(self.model).__name__} is not a causal language model: what it computes for "
                "a token depends on those after it. Use a decoder-only model."
            )

    @torch.inference_mode()
    def _agrees(self, *, rows: int, parts: Sequence[int]) -> bool:
        """Whether the last of some rows, passed together in parts, has the logits of a pass over it
        alone."""
        trial = self.with_own_cache()
        trial.joins_rows = trial.continues = True
        trial.cache.prepare_resize(rows, COLUMNS_STEP)()
        sequences = [list(range(1 + row, 1 + row + sum(parts))) for row in range(rows)]
        try:
            for start, size in zip(accumulate([0, *parts]), parts, strict=False):
                some = [
                    Segment(row=row, tokens=tokens[start : start + size], start=start)
                    for row, tokens in enumerate(sequences)
                ]
                planned = trial.plan(some)
                logits = trial.run(planned, planned.last)
            last = torch.tensor(sequences[-1:], device=self.device)
            alone = self.model(input_ids=last, use_cache=False).logits[0, -1].float()
        except PASS_ERRORS as error:
            if is_out_of_memory(error):
                raise
            return False
        gap = (logits[-1].float() - alone).norm() / alone.norm().clamp(min=1e-6)
        return bool(gap <= _TRIAL_TOLERANCE.get(logits.dtype, 0.3))

    def run(
        self,
        planned: Pass,
        keep: Int[Tensor, " kept"],
        *,
        keeps_states: bool = False,
    ) -> Float[Tensor, "kept vocabulary"]:
        """Pass the tokens; returns the logits of those in `keep`, at least one."""
        if not self.packs:
            return self._run_groups(planned, keeps_states=keeps_states)[keep]
        with self._attention(planned):
            if keeps_states:
                with self.observer.listen(planned, attention=False):
                    logits = self._forward(planned, keep)
            else:
                logits = self._forward(planned, keep)
        return logits[keep] if len(logits) != len(keep) else logits

    def _forward(self, planned: Pass, keep: Tensor) -> Float[Tensor, "tokens vocabulary"]:
        output = self.model(
            input_ids=planned.tokens[None],
            use_cache=False,
            **self._arguments(planned.positions[None], keep),
        )
        return output.logits[0]

    def _run_groups(self, planned: Pass, *, keeps_states: bool) -> Float[Tensor, "tokens vocab"]:
        """With the model's own attention. Rows that have as many tokens need no padding."""
        logits, states = [], []
        for group in planned.groups:
            listener = _GroupListener(group, planned, self.observer)
            listen = self.observer.listen(listener, attention=planned.keeps_weights)
            with listen if keeps_states else nullcontext():
                logits.append(self._run_group(planned, group, listener).flatten(0, 1))
            states.append(listener.joined())
        planned.states = [torch.cat(layer) for layer in zip(*states, strict=True)]
        return torch.cat(logits)

    def _run_group(
        self, planned: Pass, group: Group, listener: "_GroupListener"
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        """One token after the other where the model cannot continue with several; with all tokens
        before them where it keeps nothing of those."""
        caches, rows, start = planned.cache, group.rows.tolist(), int(group.positions[0, 0])
        assert isinstance(caches, OwnCaches)
        tokens = planned.tokens[group.first : group.end].view(-1, group.width)
        step, logits = group.width if self.continues or not start else 1, []
        for first in range(0, group.width, step):
            here, stop = slice(first, first + step), start + first + step
            listener.here, kept = here, caches.join(rows, start + first)
            if caches.name is None:
                given = tokens[:, here] if kept is None else torch.cat([kept, tokens[:, here]], 1)
                positions = torch.arange(stop, device=given.device).expand(len(given), -1)
                output = self.model(
                    input_ids=given, use_cache=False, **self._arguments(positions, step)
                )
                kept = given
            else:
                output = self.model(
                    input_ids=tokens[:, here],
                    use_cache=True,
                    **({} if kept is None else {caches.name: kept}),
                    **self._arguments(group.positions[:, here], step),
                )
                kept = output[caches.name]
            caches.keep(rows, start, stop, kept, also=planned.keeps_start)
            logits.append(output.logits[:, -step:])
        return torch.cat(logits, 1)

    @contextmanager
    def _attention(self, planned: Pass) -> Iterator[None]:
        config = self.model.config
        before = config._attn_implementation
        config._attn_implementation = ATTENTION
        token = current_pass.set(planned)
        try:
            with self._fused.used():
                yield
        finally:
            current_pass.reset(token)
            config._attn_implementation = before


class _GroupListener:
    """What a group gave in a pass with the model's own attention, of its tokens `here`."""

    def __init__(self, group: Group, planned: Pass, observer: ModelObserver) -> None:
        self._group, self._columns, self.here = group, planned.columns, slice(0, group.width)
        layers = (n for n in range(observer.layers) if n not in observer.without_attention)
        self._places = {layer: place for place, layer in enumerate(layers)}
        self._states: list[list[Tensor]] = [[] for _ in range(observer.layers)]

    def joined(self) -> list[Float[Tensor, "tokens dim"]]:
        """The states of every layer, in packed order; none if nothing was listened to."""
        return [torch.cat(parts, 1).flatten(0, 1) for parts in self._states if parts]

    def on_hidden(self, layer: int, states: Float[Tensor, "rows tokens dim"]) -> None:
        self._states[layer].append(states[:, self.here.start - self.here.stop :])

    def on_attention(self, layer: int, weights: Float[Tensor, "rows heads tokens all"]) -> None:
        """The last column is that of the last token: a model may keep fewer tokens than passed."""
        count = self.here.stop - self.here.start
        stop = int(self._group.positions[0, self.here.start]) + count
        weights = weights[:, :, -count:, -stop:]
        padded = nn.functional.pad(weights, (stop - weights.shape[-1], self._columns - stop))
        size = len(self._places), weights.shape[1], self._columns
        room = self._group.room_for_weights(self._places[layer], *size, like=weights)
        room[:, :, self.here] = padded
