"""A key-value cache with its room taken once: tokens are written in place, rows can be dropped."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class _RoomyLayer(DynamicLayer):
    """One layer's keys and values in a buffer of `slots` tokens, of which `length` are used."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = _allocate(key_states, self.slots)
        self.values = _allocate(value_states, self.slots)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[-2]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.length

    def fill(self, keys: Tensor, values: Tensor, rows: int) -> None:
        """Start with the same tokens in every row (the shared beginning of the prompts)."""
        keys, values = keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)
        self.update(keys, values)

    def keep_rows(self, rows: Tensor) -> None:
        self.keys = self.keys.index_select(0, rows)
        self.values = self.values.index_select(0, rows)


class RoomyCache(Cache):
    """The cache of a generation batch, `slots` tokens long in every layer."""

    def __init__(self, num_layers: int, slots: int) -> None:
        super().__init__(layers=[_RoomyLayer(slots) for _ in range(num_layers)])

    def fill(self, other: "RoomyCache", rows: int) -> None:
        """Copy a cache of one row into every row of this one."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            length = theirs.length
            mine.fill(theirs.keys[:, :, :length], theirs.values[:, :, :length], rows)

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        for layer in self.layers:
            layer.keep_rows(rows)


def _allocate(states: Tensor, slots: int) -> Tensor:
    batch, heads, _, dim = states.shape
    return torch.zeros(batch, heads, slots, dim, dtype=states.dtype, device=states.device)
