"""The key-value cache of the engine: one row per running request, each with its own length."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from clew.base.errors import InputError


@dataclass(frozen=True, kw_only=True)
class CachedTokens:
    """Keys and values of the first tokens of a row, of every layer."""

    keys: Float[Tensor, "layers kv_heads tokens dim"]
    values: Float[Tensor, "layers kv_heads tokens dim"]


class RowCache:
    """Keys and values of `rows` rows with room for `capacity` tokens each, and of a spare row that
    tokens without a request are written to. A row's tokens start at 0. Allocated when the first
    keys arrive, which have the model's sizes. `version` counts how often the tensors were
    replaced."""

    keys: Float[Tensor, "layers rows kv_heads capacity dim"]
    values: Float[Tensor, "layers rows kv_heads capacity dim"]

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self.rows = self.capacity = self.version = 0
        self.is_allocated = False

    def prepare_resize(self, rows: int, capacity: int) -> Callable[[], None]:
        """Allocate other sizes, with what fits of the tokens; the returned function puts them in
        place."""
        if self.is_allocated:
            new = [_resized(old, rows, capacity) for old in (self.keys, self.values)]

        def resize() -> None:
            self.rows, self.capacity = rows, capacity
            self.version += 1
            if self.is_allocated:
                self.keys, self.values = new

        return resize

    def layer(
        self,
        number: int,
        keys: Float[Tensor, "kv_heads tokens dim"],
        values: Float[Tensor, "kv_heads tokens dim"],
    ) -> tuple[Tensor, Tensor]:
        """All keys and values of one layer, which has got these new ones."""
        if not self.is_allocated:
            self.keys, self.values = self._allocate(keys), self._allocate(values)
            self.is_allocated = True
        if keys.shape[0] != self.keys.shape[2] or keys.shape[2] != self.keys.shape[4]:
            raise InputError(
                f"layer {number} of this model has keys of another size than its first layer. Such "
                "models cannot answer live; use them with clew.extract."
            )
        return self.keys[number], self.values[number]

    def copy_tokens(self, row: int, length: int) -> CachedTokens:
        return CachedTokens(
            keys=self.keys[:, row, :, :length].clone(),
            values=self.values[:, row, :, :length].clone(),
        )

    def paste_tokens(self, row: int, tokens: CachedTokens) -> None:
        length = tokens.keys.shape[2]
        self.keys[:, row, :, :length] = tokens.keys
        self.values[:, row, :, :length] = tokens.values

    def _allocate(self, states: Float[Tensor, "kv_heads tokens dim"]) -> Tensor:
        heads, _, dim = states.shape
        return states.new_zeros(self._layers, self.rows + 1, heads, self.capacity, dim)


def _resized(old: Tensor, rows: int, capacity: int) -> Tensor:
    layers, old_rows, heads, old_capacity, dim = old.shape
    new = old.new_zeros(layers, rows + 1, heads, capacity, dim)
    rows, capacity = min(old_rows - 1, rows), min(old_capacity, capacity)
    new[:, :rows, :, :capacity] = old[:, :rows, :, :capacity]
    return new
