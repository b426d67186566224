"""Convert Arrow list columns to flat NumPy arrays and back."""

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from clew.storage.arrow import flatten


def flat(column: pa.Array) -> np.ndarray:
    """All values of a column without missing ones, without copying."""
    return flatten(column).to_numpy(zero_copy_only=True)


def lengths(column: pa.Array) -> Int[np.ndarray, " rows"]:
    """The number of items of each row; 0 for a missing row."""
    found = column.value_lengths().fill_null(0)
    return found.to_numpy(zero_copy_only=False).astype(np.int64)


def split_rows(column: pa.Array, parts: int, tokens: Int[np.ndarray, " rows"]) -> list[np.ndarray]:
    """A view `[parts, tokens, ...]` of each row: one part per layer, or per layer and head."""
    values = flat(column)
    width = column.type.value_type
    items = (width.list_size,) if pa.types.is_fixed_size_list(width) else ()
    ends = np.cumsum(parts * tokens).tolist()
    values = values.reshape(-1, *items)
    return [
        values[end - parts * count : end].reshape(parts, count, *items)
        for end, count in zip(ends, tokens.tolist(), strict=True)
    ]


def as_fixed(values: np.ndarray) -> pa.Array:
    """One row for each of `[rows, ...]`."""
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def as_ragged(values: np.ndarray, counts: np.ndarray) -> pa.Array:
    """`counts[r]` items of `[items, ...]` for row r."""
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    items = as_fixed(values) if values.ndim > 1 else pa.array(np.ascontiguousarray(values))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
