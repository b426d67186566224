"""States in 8 bits: blocks of 64 values, each with a scale of its own, as in GGUF's Q8_0. A vector
is stored as its integers, then the scales of its blocks, which are bfloat16."""

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float16, UInt8

from clew.hallucination.traces.schema import BLOCK, is_packed, plain_field, plain_schema
from clew.storage.arrow import flatten


def unpack(packed: UInt8[np.ndarray, "*rows bytes"]) -> Float16[np.ndarray, "*rows size"]:
    """The vectors that were packed."""
    integers, scales = _split(packed)
    wide = (scales.astype(np.uint32) << 16).view(np.float32)
    each = np.repeat(wide, BLOCK, axis=-1)[..., : integers.shape[-1]]
    return (integers * each).astype(np.float16)


def _split(packed: UInt8[np.ndarray, "*rows bytes"]) -> tuple[np.ndarray, np.ndarray]:
    """The integers, and the bits of the scales."""
    size = packed.shape[-1] - 2 * -(-packed.shape[-1] // (BLOCK + 2))
    return packed[..., :size].view(np.int8), np.ascontiguousarray(packed[..., size:]).view("<u2")


def find_finite(column: pa.Array, field: pa.Field) -> Bool[np.ndarray, " rows"]:
    """The rows of a column of states, none missing, that have neither NaN nor infinity: numbers
    whose exponent bits are all ones."""
    numbers = flatten(column).to_numpy(zero_copy_only=True).reshape(len(column), -1)
    if not is_packed(field):
        return (numbers.view(np.uint16) & 0x7FFF).max(1) < 0x7C00
    vectors = numbers.reshape(len(column), -1, field.type.value_type.list_size)
    return (_split(vectors)[1] & 0x7FFF).max((1, 2)) < 0x7F80


def unpack_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as it is without packing: float16."""
    if not is_packed(field):
        return column
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(is_valid) - 1, mask=~is_valid)
        return unpack_column(column.drop_null(), field).take(places)
    kind, plain = field.type, plain_field(field).type
    size, stored = plain.value_type.list_size, kind.value_type.list_size
    packed = flatten(column).to_numpy(zero_copy_only=True).reshape(-1, stored)
    values = pa.FixedSizeListArray.from_arrays(pa.array(unpack(packed).reshape(-1)), size)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, kind.list_size)
    ends = np.cumsum(column.value_lengths().to_numpy(), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([np.zeros(1, np.int32), ends])), values)


def unpack_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Traces with all columns as they are without packing."""
    columns = [unpack_column(*both) for both in zip(batch.columns, batch.schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema(batch.schema))
