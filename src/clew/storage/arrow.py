"""Open Arrow files that somebody else may have written. Arrow trusts the lengths in a file: a wrong
one, once touched, ends the process. So they are checked first, without reading the values."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped

from clew.base.errors import StoreError
from clew.base.texts import shortened
from clew.storage.reading import open_regular

MAGIC = b"ARROW1\0\0"
_CHECKSUM_KEY = b"crc32"
# What Arrow raises for a file that it cannot read.
ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, struct.error)
_FOOTER_BYTES = 10  # the footer's length and the magic, at the end of a file
_CONTINUATION = b"\xff\xff\xff\xff"
_BLOCK = struct.Struct("<qiiq")
_LISTS = {kind(pa.int8()).id for kind in (pa.list_, pa.large_list)} | {pa.list_(pa.int8(), 1).id}
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64(), pa.bool_())
_TEXTS = (pa.string(), pa.large_string(), pa.null())
_PLAIN = {kind.id for kind in (*_SIGNED, *_UNSIGNED, *_FLOATS, *_TEXTS)}


def map_file(path: Path) -> pa.MemoryMappedFile:
    """Maps a regular file, or one that a link leads to; raises OSError. Mapping a pipe would wait
    forever."""
    open_regular(path).close()
    return pa.memory_map(os.fsencode(path))  # its name may not be UTF-8


def check_types(schema: pa.Schema) -> None:
    """Raises ValueError if a column has a type that clew never writes, or there are two of a name.
    The types it does write hold nothing but their own values: no dictionaries, views or
    extensions."""
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two columns have the same name")
    for field in schema:
        if not _is_plain(field.type):
            raise ValueError(
                f"column {shortened(field.name)} has the type {shortened(str(field.type))}"
            )


def check_batch(batch: pa.RecordBatch) -> None:
    """Raises pa.ArrowInvalid if a length or offset points outside the batch, or text is not UTF-8.
    Numbers are not read."""
    batch.validate(full=True)


class BatchHeaders:
    """The headers of a file's record batches, read before Arrow decodes what they announce."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = memoryview(content).cast("B")
        size = len(self._content)
        self._footer = self._content[size - footer_length(self._content, size) :]
        self._dictionaries, self._batches = (_find_list(self._footer, one) for one in (2, 3))

    def check(self, index: int) -> None:
        """Raises ValueError if record batch `index` is compressed or claims more rows than the file
        has bytes."""
        check_header(self._message(self._batches + index * _BLOCK.size), len(self._content))

    def check_dictionaries(self) -> None:
        """The same for the dictionaries, which Arrow decodes with the first record batch."""
        for block in self._dictionary_blocks():
            message = self._message(block)
            values = _follow(message, _header(message), 1)
            _check_record_batch(message, values, len(self._content))

    def place(self, index: int) -> tuple[int, int]:
        """The first byte of the header of record batch `index`, and its size."""
        offset, header_bytes, _, _ = _BLOCK.unpack_from(
            self._footer, self._batches + index * _BLOCK.size
        )
        return offset, header_bytes

    def _dictionary_blocks(self) -> range:
        first, size = self._dictionaries, _BLOCK.size
        count = _unsigned(self._footer, first - 4) if first else 0
        return range(first, first + count * size, size)

    def _message(self, block: int) -> Any:
        offset = _BLOCK.unpack_from(self._footer, block)[0]
        if self._content[offset : offset + 4] != _CONTINUATION:
            raise ValueError("its footer is damaged")
        return self._content[offset + 8 :]


def footer_length(tail: Any, file_bytes: int) -> int:
    """Of the footer, its own length and the magic after it."""
    [length] = struct.unpack_from("<i", tail, len(tail) - _FOOTER_BYTES)
    if not 0 < length <= file_bytes - _FOOTER_BYTES:
        raise ValueError("its footer is damaged")
    return int(length) + _FOOTER_BYTES


def _find_list(footer: Any, member: int) -> int:
    """Where the footer lists the places of its messages, after their number; 0 if it has none."""
    place = _field(footer, _root(footer), member)
    return place + _unsigned(footer, place) + 4 if place else 0


def check_header(message: Any, file_bytes: int) -> None:
    """Checks the flatbuffer of one record batch; see `BatchHeaders.check`."""
    _check_record_batch(message, _header(message), file_bytes)


def _check_record_batch(message: Any, header: int, file_bytes: int) -> None:
    length = _field(message, header, 0)
    [rows] = struct.unpack_from("<q", message, length) if length else (0,)
    if not 0 <= rows <= file_bytes:
        raise ValueError(f"a record batch claims {rows:,} rows in {file_bytes:,} bytes")
    if _field(message, header, 3):
        raise ValueError("it is compressed, but its values must be readable in place")


def check_stream(content: pa.Buffer) -> Iterator[None]:
    """Checks the headers of a stream one by one; yields before each record batch is decoded."""
    messages = pa.ipc.MessageReader.open_stream(content)
    for message in messages:
        if message.type == "record batch":
            check_header(memoryview(message.metadata), content.size)
            yield


def encode_table(table: pa.Table) -> bytes:
    """A small Arrow file, whose record batches have checksums."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        for batch in table.to_batches():
            file.write_batch(batch, custom_metadata=describe_batch(batch))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_table(path: Path, *, dictionaries: bool = False) -> pa.Table:
    """A small Arrow file, checked; raises one of ARROW_ERRORS if it cannot be read or does not
    match its checksums, if it has them. With `dictionaries`, its columns may be dictionaries of
    texts."""
    with map_file(path) as mapped:
        content = mapped.read_buffer()
        file, headers = pa.ipc.open_file(content), BatchHeaders(content)
        check_types(_without_dictionaries(file.schema) if dictionaries else file.schema)
        headers.check_dictionaries()
        batches = []
        for index in range(file.num_record_batches):
            headers.check(index)
            batch, metadata = file.get_batch_with_custom_metadata(index)
            check_batch(batch)
            if has_checksum(batch, metadata) is False:
                raise ValueError("it was changed after it was written: a checksum does not match")
            batches.append(batch)
        return pa.Table.from_batches(batches, file.schema)


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    texts = {
        field.name: field.type.value_type
        for field in schema
        if pa.types.is_dictionary(field.type) and field.type.value_type == pa.string()
    }
    return pa.schema([field.with_type(texts.get(field.name, field.type)) for field in schema])


def describe_batch(batch: pa.RecordBatch) -> dict[bytes, bytes]:
    """The metadata that a record batch is written with: its checksum."""
    return {_CHECKSUM_KEY: str(checksum_batch(batch)).encode()}


def has_checksum(batch: pa.RecordBatch, metadata: Any) -> bool | None:
    """Whether a record batch has the checksum in its metadata; None if there is none."""
    expected = (metadata or {}).get(_CHECKSUM_KEY)
    return None if expected is None else bool(int(expected) == checksum_batch(batch))


def checksum_batch(batch: pa.RecordBatch) -> int:
    """CRC-32 over the values of a record batch, the same before writing and after reading."""
    checksum = 0
    for column in batch.columns:
        checksum = _checksum_array(column, checksum)
    return checksum


def _checksum_array(array: pa.Array, checksum: int) -> int:
    checksum = zlib.crc32(len(array).to_bytes(8, "little"), checksum)
    if array.null_count:
        checksum = zlib.crc32(array.is_valid().to_numpy(zero_copy_only=False), checksum)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _checksum_array(array.dictionary_decode(), checksum)
    if pa.types.is_fixed_size_list(kind):
        return _checksum_array(array.flatten(), checksum)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return _checksum_array(array.flatten(), zlib.crc32(lengths, checksum))
    if pa.types.is_string(kind):
        text = "\0".join("" if value is None else value for value in array.to_pylist())
        return zlib.crc32(text.encode("utf-8", "surrogatepass"), checksum)
    known = array.fill_null(0) if array.null_count else array
    return zlib.crc32(known.to_numpy(zero_copy_only=False), checksum)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def flatten(column: pa.Array) -> pa.Array:
    """The values of all lists in a column; raises StoreError if numbers are missing among them."""
    while is_list(column.type):
        column = column.flatten()
    if column.null_count and not pa.types.is_string(column.type):
        raise StoreError(
            f"{column.null_count:,} numbers are missing inside lists of a shard: re-create the "
            "store with the command that wrote it."
        )
    return column


def locate_values(column: pa.Array, first: int, count: int) -> tuple[int, int]:
    """The address and the size in bytes of the values of `count` rows of a whole column, from row
    `first`."""
    while is_list(column.type) and count:
        if pa.types.is_fixed_size_list(column.type):
            first, count = first * column.type.list_size, count * column.type.list_size
        else:
            start, end = (column.offsets[row].as_py() for row in (first, first + count))
            first, count = start, end - start
        column = column.values
    *_, values = buffers = column.buffers()
    if values is None or not count:
        return 0, 0
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        wide = np.int64 if pa.types.is_large_string(column.type) else np.int32
        start, end = np.frombuffer(buffers[1], wide)[[first, first + count]].tolist()
    else:
        bits = column.type.bit_width
        start, end = first * bits // 8, -(-(first + count) * bits // 8)
    return values.address + start, end - start


def as_numpy(column: pa.Array | pa.ChunkedArray) -> Shaped[np.ndarray, " rows"]:
    """A column of numbers without missing values. Arrow's own `to_numpy` imports pandas, which
    takes most of the time to open a store."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.from_dlpack(whole)


def _is_plain(kind: pa.DataType) -> bool:
    while kind.id in _LISTS:
        kind = kind.value_type
    return kind.id in _PLAIN


def _header(message: Any) -> int:
    return _follow(message, _root(message), 2)


def _follow(table: Any, start: int, index: int) -> int:
    """The table that a member of a flatbuffer's table refers to. Raises ValueError if absent."""
    place = _field(table, start, index)
    if not place:
        raise ValueError("a header is damaged")
    return place + _unsigned(table, place)


def _root(table: Any) -> int:
    return _unsigned(table, 0)


def _unsigned(table: Any, place: int) -> int:
    return struct.unpack_from("<I", table, place)[0]


def _field(table: Any, start: int, index: int) -> int:
    """Where a member of a flatbuffer's table lies; 0 if it is absent."""
    vtable = start - struct.unpack_from("<i", table, start)[0]
    entry = 4 + 2 * index
    if entry >= struct.unpack_from("<H", table, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", table, vtable + entry)[0]
    return start + offset if offset else 0
