"""The rows of models that keep more than keys and values, or keep those in their own way: each row
has what the model itself returned for it, and rows with as many tokens pass together."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

# What models call what they keep of the tokens that they have passed.
_NAMES = ("past_key_values", "cache_params", "state")


class OwnCaches:
    """What a model keeps of each row's tokens, by how many they are: under this `name`, or the
    tokens themselves without one. A state cannot be shortened, so that the one before tokens that
    others will replace is kept as well. `layers` are those with attention. The sizes are only those
    that were asked for."""

    def __init__(self, layers: int, name: str | None) -> None:
        self.rows = self.capacity = self.version = 0
        self.layers, self.name = layers, name
        self._kept: dict[int, dict[int, Any]] = {}

    def prepare_resize(self, rows: int, capacity: int) -> Callable[[], None]:
        def resize() -> None:
            self.rows, self.capacity = rows, capacity
            self.version += 1
            self._kept = {row: kept for row, kept in self._kept.items() if row < rows}

        return resize

    def join(self, rows: Sequence[int], start: int) -> Any:
        """What was kept of the first tokens of some rows, as the model takes it."""
        return _join([self._kept[row][start] for row in rows]) if start else None

    def keep(self, rows: Sequence[int], start: int, stop: int, kept: Any, *, also: bool) -> None:
        """Keep what the model returned after tokens up to `stop`; `also` what was there at `start`
        and before."""
        for place, row in enumerate(rows):
            before = self._kept.get(row, {}) if also else {}
            own = {tokens: one for tokens, one in before.items() if tokens <= start}
            self._kept[row] = {**own, stop: _part(kept, place, len(rows))}

    def copy_tokens(self, row: int, length: int) -> Any:
        return length, self._kept[row][length]

    def paste_tokens(self, rows: int | slice, tokens: Any) -> None:
        length, kept = tokens
        some = range(rows, rows + 1) if isinstance(rows, int) else range(rows.start, rows.stop)
        self._kept |= {row: {length: kept} for row in some}


def name_cache(model: PreTrainedModel) -> str:
    """What the model calls what it keeps."""
    taken = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in taken), _NAMES[0])


def carries_states(model: PreTrainedModel) -> bool:
    """Whether a layer keeps more than keys and values, as Mamba beside attention does."""
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def _join(parts: Sequence[Any]) -> Any:
    """New tensors, since models write into them."""
    return _map(lambda tensors: torch.cat([*tensors]) if tensors[0].dim() else tensors[0], parts)


def _part(kept: Any, place: int, count: int) -> Any:
    def take(tensors: Sequence[Tensor]) -> Tensor:
        whole = tensors[0]
        has_rows = whole.dim() and len(whole) == count
        return whole[place : place + 1].clone() if has_rows else whole

    return _map(take, [kept])


def _map(function: Callable[[Sequence[Tensor]], Tensor], parts: Sequence[Any]) -> Any:
    """The same object with other tensors: those of `parts` that lie at the same place, in one."""
    first = parts[0]
    if isinstance(first, Tensor):
        return function(parts)
    if isinstance(first, dict):
        return {name: _map(function, [part[name] for part in parts]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(_map(function, some) for some in zip(*parts, strict=True))
    if not type(first).__module__.startswith("transformers."):
        return first
    new = copy.copy(first)
    vars(new).update(_map(function, [vars(part) for part in parts]))
    return new
