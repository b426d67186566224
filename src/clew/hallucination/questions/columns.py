"""Questions from Parquet and Arrow files, which may claim more rows or text than they hold."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.base.errors import InputError
from clew.base.texts import bytes_text, shortened
from clew.hallucination.questions.parquet_sizes import measure_parquet
from clew.hallucination.questions.records import Row, useful_columns
from clew.storage.arrow import BatchHeaders, map_file, unpacked_bytes

_BATCH_ROWS = 1024
# Text of a few rows that are in memory at once, and of one row.
_MAX_TEXT_BYTES = 1 << 26
# Real questions take some bytes each, and text compresses 3 to 20 times.
_ROWS_PER_BYTE = 64
_MAX_RATIO = 200
_FREE_BYTES = 1 << 26
_FREE_ROWS = 1 << 20
# One row may hold them all, and each takes 16 bytes or more. Accepted answers come with a question.
_LIST_VALUES_PER_BYTE = 16
_FREE_LIST_VALUES = 1 << 20
# Python's own bytes for a list, and for an item of it; Arrow needs none for nulls.
_LIST_BYTES, _ITEM_BYTES = 64, 8


def read_parquet(path: Path) -> Iterator[Row]:
    # Never ask pyarrow 26 for a column of the footer: it ends the process if one is damaged.
    size = measure_parquet(path, _most_unpacked(path))
    _check_rows(path, size.rows)
    _check_list_values(path, size.list_values)
    _check_unpacked(path, size.unpacked_bytes)
    _check_encodings(path, size.delta_columns)
    with pq.ParquetFile(path) as file:
        columns = useful_columns(path.name, file.schema_arrow.names)
        if not set(columns) <= set(size.columns):
            raise ValueError("its schema is damaged")
        kinds = {name: file.schema_arrow.field(name).type for name in columns}
    # Arrow makes a list of the fixed length for a missing one, too.
    fixed = sum(items for kind in kinds.values() if (items := _fixed_items(kind)) > 1)
    _check_list_values(path, fixed * max(size.rows, size.list_values))
    texts = [name for name in columns if _is_text(kinds[name])]
    rows = max(1, min(_BATCH_ROWS, _MAX_TEXT_BYTES // max(1, size.shared_bytes)))
    # As dictionaries, or one long text that many rows refer to would be copied for each. Arrow
    # cannot read nested columns that way.
    with pq.ParquetFile(path, read_dictionary=texts, pre_buffer=False) as file:
        yield from _batch_rows(path, file.iter_batches(batch_size=rows, columns=columns))


def read_arrow(path: Path) -> Iterator[Row]:
    with map_file(path) as source:
        content = source.read_buffer()
        try:
            reader = pa.ipc.open_file(content)
            batches = _file_batches(path, reader, content)
        except pa.ArrowInvalid:  # the stream format, which Hugging Face writes
            reader = pa.ipc.open_stream(content)
            batches = _stream_batches(path, reader, content)
        columns = useful_columns(path.name, reader.schema.names)
        yield from _batch_rows(path, (batch.select(columns) for batch in batches))


def _file_batches(path: Path, reader: Any, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    headers = BatchHeaders(content)
    _check_unpacked(path, headers.unpacked_dictionaries())
    for index in range(reader.num_record_batches):
        _check_unpacked(path, headers.unpacked_bytes(index))
        yield reader.get_batch(index)


def _stream_batches(path: Path, reader: Any, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    dictionaries = 0
    for message in pa.ipc.MessageReader.open_stream(content):
        if message.type == "dictionary":
            dictionaries += unpacked_bytes(message)
        elif message.type == "record batch":
            _check_unpacked(path, dictionaries + unpacked_bytes(message))
            yield reader.read_next_batch()


def _check_rows(path: Path, rows: int) -> None:
    size = path.stat().st_size
    if rows > _ROWS_PER_BYTE * size + _FREE_ROWS:
        raise InputError(
            f"{path} claims {rows:,} rows, but has only {bytes_text(size)}: download or create it "
            "again; if it is right, save it as JSON Lines (.jsonl)"
        )


def _check_list_values(path: Path, values: int) -> None:
    size = path.stat().st_size
    if values > _LIST_VALUES_PER_BYTE * size + _FREE_LIST_VALUES:
        raise InputError(
            f"{path} has {values:,} values in lists, but only {bytes_text(size)}: if you trust it, "
            "save it as JSON Lines (.jsonl)"
        )


def _check_encodings(path: Path, delta_columns: Collection[str]) -> None:
    """Their lengths are inside of the pages; Arrow decodes as many as a page claims, at once."""
    if delta_columns:
        raise InputError(
            f"{path} has delta-encoded texts in column {shortened(min(delta_columns))}: write it "
            "with dictionaries or plain texts, or save it as JSON Lines (.jsonl)"
        )


def _most_unpacked(path: Path) -> int:
    return _MAX_RATIO * path.stat().st_size + _FREE_BYTES


def _check_unpacked(path: Path, claimed: int) -> None:
    if claimed > _most_unpacked(path):
        size = path.stat().st_size
        raise InputError(
            f"{path} decompresses to more than {_MAX_RATIO} times its size "
            f"({bytes_text(size)} to {bytes_text(claimed)}): if you trust it, save it as JSON "
            "Lines (.jsonl)"
        )


def _batch_rows(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    number = text_bytes = 0
    for batch in batches:
        _check_rows(path, number + batch.num_rows)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            # Rows that all refer to one long text are small in the file, but not as questions.
            text_bytes += (size := _batch_bytes(part))
            _check_unpacked(path, text_bytes)
            for record in _records(part, size):
                problem = record if isinstance(record, str) else None
                yield Row(number=number, where=f"row {number + 1}", record=record, problem=problem)
                number += 1


def _records(batch: pa.RecordBatch, size: int) -> Iterator[dict[str, object] | str]:
    """The records, a few at a time; in place of one that is too large, what is wrong."""
    if size <= _MAX_TEXT_BYTES:
        yield from _as_python(batch)
    elif batch.num_rows == 1:
        yield f"it has {bytes_text(size)} of text; at most {bytes_text(_MAX_TEXT_BYTES)} are read"
    else:
        half = batch.num_rows // 2
        for part in (batch.slice(0, half), batch.slice(half)):
            yield from _records(part, _batch_bytes(part))


def _as_python(batch: pa.RecordBatch) -> list[dict[str, object]]:
    try:
        return batch.to_pylist()
    except OverflowError as error:
        raise ValueError("a date, a time or a duration is out of range") from error


def _batch_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(_text_bytes, batch.columns))


def _text_bytes(column: pa.Array) -> int:
    """Bytes of a column once each reference to a shared text is a text of its own."""
    if isinstance(column, pa.DictionaryArray):
        values = column.dictionary
        if not _is_text(values.type):
            return int(column.nbytes)
        return int(pc.sum(pc.binary_length(values).take(column.indices)).as_py() or 0)
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _LIST_BYTES * len(column) + _text_bytes(column.flatten())
    if isinstance(column, pa.StructArray):
        return sum(map(_text_bytes, column.flatten()))
    return max(int(column.nbytes), _ITEM_BYTES * len(column))


def _fixed_items(kind: pa.DataType) -> int:
    """How many items each value has by its type alone."""
    inner = (_fixed_items(kind.field(index).type) for index in range(kind.num_fields))
    items = sum(count for count in inner if count > 1) or 1
    return items * (kind.list_size if pa.types.is_fixed_size_list(kind) else 1)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
