"""Put traces together: from flat arrays to an Arrow record batch, without a copy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clew.hallucination.traces.schema import resolve_shape


def build_record_batch(
    schema: pa.Schema,
    columns: Mapping[str, Any],
    token_counts: Sequence[int],
    answer_counts: Sequence[int],
) -> pa.RecordBatch:
    """A record batch of `len(token_counts)` traces.

    `columns` maps names to a sequence of one value a trace, or, for array fields, to one flat
    numpy array with the traces one after the other. Columns not given are null.
    """
    rows = len(token_counts)
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(values, np.ndarray) and _is_array_field(field):
            counts = zip(token_counts, answer_counts, strict=True)
            sizes = [math.prod(resolve_shape(field, *count) or ()) for count in counts]
            arrays.append(_build_list(field, values.reshape(-1), sizes))
        else:
            arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_array_field(field: pa.Field) -> bool:
    return resolve_shape(field, 0, 0) is not None


def _build_list(field: pa.Field, flat: np.ndarray, sizes: Sequence[int]) -> pa.Array:
    kind, inner = field.type, 1
    if sum(sizes) != len(flat):
        raise ValueError(f"column {field.name}: {len(flat)} values for {sum(sizes)} places")
    if pa.types.is_fixed_size_list(kind):
        outer, nested = kind.list_size, kind.value_type
        values = pa.FixedSizeListArray.from_arrays(pa.array(flat), nested.list_size)
        return pa.FixedSizeListArray.from_arrays(values, outer)
    values = pa.array(flat)
    if pa.types.is_fixed_size_list(kind.value_type):
        inner = kind.value_type.list_size
        values = pa.FixedSizeListArray.from_arrays(values, inner)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64) // inner)])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
