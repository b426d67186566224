"""Rows of a column whose bytes lie elsewhere: which bytes they need, and the array made of them.
Offsets and validity bits, which say where values lie, are known; values are fetched."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int64

from clew.storage.arrow import BatchHeader, is_list
from clew.storage.places import Range


@dataclass
class ArrayPlan:
    """One array of a record batch. Ranges count from the beginning of the file; `valid` is None if
    no value is missing, `offsets` if the rows have no lengths of their own."""

    kind: pa.DataType
    length: int
    valid_at: Range | None
    offsets_at: Range | None
    values_at: Range | None
    inner: "ArrayPlan | None"
    valid: Bool[np.ndarray, " rows"] | None = None
    offsets: Int64[np.ndarray, " borders"] | None = None

    @property
    def first_value(self) -> int:
        """Where the values start, of the innermost array."""
        if self.inner is not None:
            return self.inner.first_value
        return self.values_at[0] if self.values_at is not None else 0

    def list_metadata(self) -> Iterator[Range]:
        """What `take_metadata` needs."""
        yield from (at for at in (self.valid_at, self.offsets_at) if at is not None)
        if self.inner is not None:
            yield from self.inner.list_metadata()

    def take_metadata(self, pieces: Iterator[memoryview]) -> None:
        """Raises ValueError if offsets lead outside of what they refer to."""
        if self.valid_at is not None:
            bits = np.unpackbits(np.frombuffer(next(pieces), np.uint8), bitorder="little")
            self.valid = bits[: self.length].astype(bool)
        if self.offsets_at is not None:
            wide = np.int64 if _is_large(self.kind) else np.int32
            self.offsets = np.frombuffer(next(pieces), wide)[: self.length + 1].astype(np.int64)
            self._check_offsets(self.offsets)
        if self.inner is not None:
            self.inner.take_metadata(pieces)

    def _check_offsets(self, offsets: np.ndarray) -> None:
        end = self.inner.length if self.inner is not None else (self.values_at or (0, 0))[1]
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > end or (np.diff(offsets) < 0).any()):
            raise ValueError("offsets point outside their column")

    def list_values(self, first: int, count: int) -> Iterator[Range]:
        """The bytes of `count` rows from row `first`."""
        if self.inner is not None:
            yield from self.inner.list_values(*self._inside(first, count))
        elif self.values_at is not None:
            start, length = self._value_bytes(first, count)
            yield self.values_at[0] + start, length

    def build(self, first: int, count: int, pieces: Iterator[memoryview]) -> pa.Array:
        """The array of these rows, from the bytes of `list_values`."""
        valid = None if self.valid is None else self.valid[first : first + count]
        bits = None if valid is None else _as_buffer(np.packbits(valid, bitorder="little"))
        missing = 0 if valid is None else int(count - valid.sum())
        if pa.types.is_null(self.kind):
            return pa.nulls(count)
        if self.inner is not None:
            children = [self.inner.build(*self._inside(first, count), pieces)]
            buffers = [bits] if self.offsets_at is None else [bits, self._borders(first, count)]
            return pa.Array.from_buffers(self.kind, count, buffers, missing, children=children)
        values = self._take_values(next(pieces), first, count)
        buffers = [bits, values]
        if self.offsets_at is not None:
            buffers = [bits, self._borders(first, count), values]
        return pa.Array.from_buffers(self.kind, count, buffers, missing)

    def _inside(self, first: int, count: int) -> tuple[int, int]:
        """The rows of the inner array that these rows consist of."""
        if self.offsets is None:
            size = self.kind.list_size
            return first * size, count * size
        start, end = self._border(first), self._border(first + count)
        return start, end - start

    def _border(self, row: int) -> int:
        # Arrow may write no offsets for a column without rows.
        return int(self.offsets[row]) if self.offsets is not None and len(self.offsets) else 0

    def _borders(self, first: int, count: int) -> pa.Buffer:
        wide = np.int64 if _is_large(self.kind) else np.int32
        if self.offsets is None or not len(self.offsets):
            return _as_buffer(np.zeros(1, wide))
        borders = self.offsets[first : first + count + 1]
        return _as_buffer((borders - borders[0]).astype(wide))

    def _value_bytes(self, first: int, count: int) -> Range:
        if self.offsets_at is not None:
            start, end = self._border(first), self._border(first + count)
        elif pa.types.is_boolean(self.kind):
            start, end = first // 8, -(-(first + count) // 8)
        else:
            width = self.kind.bit_width // 8
            start, end = first * width, (first + count) * width
        return start, end - start

    def _take_values(self, piece: memoryview, first: int, count: int) -> pa.Buffer:
        """A copy, because pieces of an answer lie at any address, and NumPy wants aligned ones."""
        if not pa.types.is_boolean(self.kind):
            return pa.py_buffer(bytes(piece))
        bits = np.unpackbits(np.frombuffer(piece, np.uint8), bitorder="little")
        return _as_buffer(np.packbits(bits[first % 8 :][:count], bitorder="little"))


def plan_arrays(schema: pa.Schema, header: BatchHeader, base: int) -> dict[str, ArrayPlan]:
    """The columns of a record batch whose values start at byte `base`. Raises ValueError if the
    header does not fit the schema."""
    arrays, buffers = iter(header.arrays), iter(header.buffers)
    try:
        plans = {field.name: _plan(field.type, arrays, buffers, base) for field in schema}
    except StopIteration:
        raise ValueError("a header is damaged") from None
    if any(plan.length != header.rows for plan in plans.values()):
        raise ValueError("its columns differ in length")
    return plans


def _plan(kind: pa.DataType, arrays: Any, buffers: Any, base: int) -> ArrayPlan:
    length, missing = next(arrays)
    if pa.types.is_null(kind):
        return ArrayPlan(kind, length, None, None, None, None)
    start, size = next(buffers)
    valid_at = (base + start, size) if missing else None
    if missing and 8 * size < length:
        raise ValueError("a header is damaged")
    offsets_at = values_at = inner = None
    if _has_offsets(kind):
        start, size = next(buffers)
        offsets_at = (base + start, size)
        if size < (length + 1) * (8 if _is_large(kind) else 4) and length:
            raise ValueError("a header is damaged")
    if is_list(kind):
        inner = _plan(kind.value_type, arrays, buffers, base)
    else:
        start, size = next(buffers)
        values_at = (base + start, size)
    plan = ArrayPlan(kind, length, valid_at, offsets_at, values_at, inner)
    _check_size(plan)
    return plan


def _check_size(plan: ArrayPlan) -> None:
    """What has no offsets must be as long as its rows need."""
    if plan.offsets_at is not None or plan.length < 0:
        return
    if plan.inner is not None:
        fits = plan.inner.length >= plan.length * plan.kind.list_size
    else:
        fits = plan.values_at is None or plan._value_bytes(0, plan.length)[1] <= plan.values_at[1]
    if not fits:
        raise ValueError("a column is shorter than its rows")


def _has_offsets(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or (is_list(kind) and not pa.types.is_fixed_size_list(kind))


def _is_large(kind: pa.DataType) -> bool:
    return pa.types.is_large_list(kind) or pa.types.is_large_string(kind)


def _as_buffer(array: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(array))
