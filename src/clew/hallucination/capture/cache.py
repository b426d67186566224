"""A key-value cache with its room taken once: tokens are written in place, rows can be dropped."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class _RoomyLayer(DynamicLayer):
    """One layer's keys and values: a buffer of `rows` x `slots`, filled where it is told to."""

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
        self.keys = self.keys.index_select(0, rows)
        self.values = self.values.index_select(0, rows)
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
        """Begin every row with the same tokens, those of a cache of one row."""
        for mine, theirs in zip(self.rooms, prefix.rooms, strict=True):
            mine.update(
                theirs.keys[:, :, : theirs.length].expand(mine.rows, -1, -1, -1),
                theirs.values[:, :, : theirs.length].expand(mine.rows, -1, -1, -1),
            )

    def go_to(self, slot: int, first: int = 0, last: int | None = None) -> None:
        """The next pass brings rows `first` to `last`, from `slot` on."""
        for layer in self.rooms:
            layer.length = slot
            layer.window = slice(first, layer.rows if last is None else last)

    def write_at(self, slot: Tensor) -> None:
        """From now on every pass brings one token, which goes where `slot` (on the device) says;
        all slots are handed out, and the mask must hide the empty ones."""
        for layer in self.rooms:
            layer.slot = slot

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        for layer in self.rooms:
            layer.keep_rows(rows)
