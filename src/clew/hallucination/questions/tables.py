"""Questions from Parquet and Arrow files, which may claim more rows or text than they hold."""

import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clew.base.errors import InputError
from clew.base.python_processes import Copy, limit_process, own_memory, start_copy
from clew.base.texts import bytes_text
from clew.hallucination.questions.columns import RECOGNIZED, RowFormat, useful_columns
from clew.hallucination.questions.records import Layout, Row, first_line
from clew.storage.reading import open_regular

_BATCH_ROWS = 1024
# Text of a few rows that are in memory at once, and of one row.
_MAX_TEXT_BYTES = 1 << 26
# Real questions take some bytes each, and text compresses 3 to 20 times.
_ROWS_PER_BYTE = 64
_MAX_RATIO = 200
_FREE_BYTES = 1 << 26
_FREE_ROWS = 1 << 20
# What decoding takes besides its rows, and CPU time. Real files take 0.02 s per MB.
_DECODER_BYTES = 1 << 28
_LEAST_SECONDS, _BYTES_PER_SECOND = 10, 1_000_000
_ROWS_KEY, _NAMES_KEY = b"rows", b"names"
_PLAIN_TEXTS = "write it with dictionaries or plain texts, or save it as JSON Lines (.jsonl)"
# Python's own bytes for a list, and for an item of it; Arrow needs none for nulls.
_LIST_BYTES, _ITEM_BYTES = 64, 8


def read_table(path: Path, format: RowFormat = RECOGNIZED) -> Iterator[Row]:
    """The rows of a Parquet or Arrow file, decoded in a process of its own with limited memory and
    time: Arrow believes what a file claims, allocates first, and ends the process for some damaged
    files."""
    seconds = _LEAST_SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    memory = _most_unpacked(path) + _DECODER_BYTES
    content, errors = os.pipe(), os.pipe()
    with (
        open_regular(path) as source,
        os.fdopen(content[0], "rb") as batches,
        os.fdopen(errors[0], "rb") as said,
    ):
        files = {"stdin": source.fileno(), "stdout": content[1], "stderr": errors[1]}
        child = start_copy(
            write_table, path.name, memory, seconds, format.columns, format.keep, **files
        )
        os.close(content[1])
        os.close(errors[1])
        try:
            yield from _batch_rows(path, _receive_batches(path, batches))
            _explain(path, child, said.read().decode(errors="replace").strip())
        finally:
            child.end()


def _receive_batches(path: Path, content: BinaryIO) -> Iterator[pa.RecordBatch]:
    with suppress(pa.ArrowInvalid, OSError):  # it ended early, and says why
        batches = pa.ipc.open_stream(content)
        _check_rows(path, int(batches.schema.metadata[_ROWS_KEY]))
        yield from batches


def _explain(path: Path, child: Copy, said: str) -> None:
    if child.wait() == 0 and not said:
        return
    kind, _, text = said.rpartition("\n")[2].partition(": ")
    if kind == InputError.__name__:
        raise InputError(text)
    if kind == MemoryError.__name__:
        raise _too_large(path, "more memory than that")
    raise ValueError(text if kind == ValueError.__name__ else "it crashes its reader")


def write_table(
    name: str, max_memory: int, max_seconds: int, columns: list[list[str]], keep: list[str]
) -> None:
    """Decode the Parquet or Arrow file that is standard input, and write its useful columns to
    standard output as a stream of Arrow; to standard error, what is wrong."""
    format = RowFormat(columns=tuple((role, one) for role, one in columns), keep=tuple(keep))
    limit_process(memory_bytes=max_memory, seconds=max_seconds)
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with own_memory():
            is_parquet = name.lower().endswith(".parquet")
            _write_parquet(format) if is_parquet else _write_arrow(format)
    except (MemoryError, InputError, ValueError, OSError, pa.ArrowException) as error:
        told = next((k for k in (MemoryError, InputError) if isinstance(error, k)), ValueError)
        text = first_line(error)
        if "Not yet implemented" in text:
            told, text = InputError, f"{name} has delta-encoded texts: {_PLAIN_TEXTS}"
        os.write(2, f"{told.__name__}: {text}".encode(errors="replace"))
        os._exit(1)  # what is still buffered must not follow


def _write_parquet(format: RowFormat) -> None:
    with pq.ParquetFile(sys.stdin.buffer) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        columns = useful_columns(names, format)
        texts = [one for one in columns if _is_text(file.schema_arrow.field(one).type)]
    sys.stdin.buffer.seek(0)
    # As dictionaries, or one long text that many rows refer to would be copied for each. Arrow
    # cannot read nested columns that way.
    file = pq.ParquetFile(sys.stdin.buffer, read_dictionary=texts, pre_buffer=False)
    batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=columns, use_threads=False)
    first = next(batches, None)
    if first is None:
        _write(_select(file.schema_arrow, columns), (), rows, names)
    else:
        _write(first.schema, chain([first], batches), rows, names)


def _write_arrow(format: RowFormat) -> None:
    content = pa.py_buffer(mmap.mmap(0, 0, access=mmap.ACCESS_READ))
    try:
        file = pa.ipc.open_file(content)
        batches = map(file.get_batch, range(file.num_record_batches))
    except pa.ArrowInvalid:  # the stream format, which Hugging Face writes
        file = batches = pa.ipc.open_stream(content)
    names = file.schema.names
    columns = useful_columns(names, format)
    selected = (batch.select(columns) for batch in batches)
    _write(_select(file.schema, columns), selected, 0, names)


def _select(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Not by way of an empty table, for which Arrow imports pandas."""
    return pa.schema([schema.field(name) for name in columns])


def _write(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], rows: int, names: Sequence[str]
) -> None:
    about = {_ROWS_KEY: str(rows), _NAMES_KEY: json.dumps(names)}
    with pa.ipc.new_stream(sys.stdout.buffer, schema.with_metadata(about)) as out:
        for batch in batches:
            out.write_batch(batch)


def _check_rows(path: Path, rows: int) -> None:
    size = path.stat().st_size
    if rows > _ROWS_PER_BYTE * size + _FREE_ROWS:
        raise InputError(
            f"{path} claims {rows:,} rows, but has only {bytes_text(size)}: download or create it "
            "again; if it is right, save it as JSON Lines (.jsonl)"
        )


def _most_unpacked(path: Path) -> int:
    return _MAX_RATIO * path.stat().st_size + _FREE_BYTES


def _too_large(path: Path, claimed: str) -> InputError:
    return InputError(
        f"{path} decompresses to more than {_MAX_RATIO} times its size "
        f"({bytes_text(path.stat().st_size)} to {claimed}): if you trust it, save it as JSON "
        "Lines (.jsonl)"
    )


def _batch_rows(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    number = text_bytes = 0
    layout = Layout()
    for batch in batches:
        if layout.columns is None:
            layout = Layout(columns=tuple(json.loads(batch.schema.metadata[_NAMES_KEY])))
        _check_rows(path, number + batch.num_rows)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            part = batch.slice(start, _BATCH_ROWS)
            # Rows that all refer to one long text are small in the file, but not as questions.
            text_bytes += (size := _batch_bytes(part))
            if text_bytes > _most_unpacked(path):
                raise _too_large(path, bytes_text(text_bytes))
            for record in _records(part, size):
                problem = record if isinstance(record, str) else None
                yield Row(
                    number=number,
                    where=f"row {number + 1}",
                    record=None if problem else record,
                    problem=problem,
                    layout=layout,
                )
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


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
