"""Questions from a local file: JSON, JSON Lines, CSV, TSV, Parquet or Arrow."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import InputError
from clew.hallucination.questions.records import (
    Row,
    RowSource,
    first_line,
    plain_fields,
    useful_columns,
)

_BATCH_ROWS = 1024
# Columns beside the question may hold whole articles; by default, csv rejects fields of more than
# 131,072 characters.
csv.field_size_limit(1 << 30)
_DELIMITERS = ",;\t|"  # of several equally frequent ones, the first


def open_file(path: Path) -> RowSource:
    """The rows of a file. Raises InputError, immediately or while reading, if it cannot be used."""
    ending = file_ending(path)
    if ending not in READERS:
        raise InputError(
            f'{path}: unknown file extension "{ending}": use one of {", ".join(READERS)}'
        )
    rows = _read_rows(path, ending)
    return RowSource(name=path.name, stem=path.name[: -len(ending)], rows=rows)


def _read_rows(path: Path, ending: str) -> Iterator[Row]:
    try:
        yield from READERS[ending](path)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} is not UTF-8 text (found the byte 0x{byte:02x}): save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise InputError(
            f"{path} cannot be read as {ending} ({first_line(error)}): check the file"
        ) from error


def file_ending(path: Path) -> str:
    """The file's format by its extension, such as ".csv" or ".jsonl.gz"."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def _open_text(path: Path) -> TextIO:
    """Text with or without a byte order mark, line endings unchanged (as csv requires)."""
    if path.suffix.lower() == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _read_json_lines(path: Path) -> Iterator[Row]:
    number = 0
    with _open_text(path) as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"line {line_number}"
            try:
                yield Row(number=number, where=where, record=json.loads(line))
            except (ValueError, RecursionError) as error:
                yield Row(number=number, where=where, problem=f"it is not JSON ({error})")
            # A malformed line is counted, so that fixing it does not change the id of any other
            # record.
            number += 1


def _read_json(path: Path) -> Iterator[Row]:
    with _open_text(path) as file:
        text = file.read()
    try:
        records = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        # Many .json files hold one record per line. Python's decoder distinguishes a second value
        # from malformed text only by its message.
        if getattr(error, "msg", "") != "Extra data":
            raise InputError(f"{path} is not JSON ({error}): fix it or save it again") from error
        yield from _read_json_lines(path)
        return
    if isinstance(records, dict):
        fields = plain_fields(records)
        records = fields.get("data", fields.get("questions"))
    if not isinstance(records, list):
        raise InputError(
            f'{path} does not contain a list of records: write [...] or {{"data": [...]}}'
        )
    for number, record in enumerate(records):
        yield Row(number=number, where=f"row {number + 1}", record=record)


def _find_delimiter(file: TextIO) -> str:
    """Find the delimiter of a CSV file: the candidate that occurs most often in the header
    (spreadsheets in many countries write semicolons). The file is rewound to its start."""
    header = next((line for line in file if line.strip()), "")
    file.seek(0)
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=bare.count)


def _read_csv(path: Path) -> Iterator[Row]:
    with _open_text(path) as file:
        delimiter = "\t" if ".tsv" in file_ending(path) else _find_delimiter(file)
        # Strict, since an unclosed quote would silently swallow the rest of the file.
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        number, last_line = 0, 0
        while True:
            where, first_line = f"row {number + 1}", last_line + 1
            try:
                cells = next(lines, None)
                last_line = lines.line_num
            except csv.Error as error:
                last_line = lines.line_num
                problem = f"lines {first_line} to {last_line} are not valid CSV ({error})"
                yield Row(number=number, where=where, problem=problem)
                number += 1
                continue
            if cells is None:
                return
            if not any(map(str.strip, cells)):
                continue
            if header is None:
                header = cells
                continue
            yield _csv_row(number, where, header, cells)
            number += 1


def _csv_row(number: int, where: str, header: list[str], cells: list[str]) -> Row:
    if len(cells) > len(header):
        problem = f"it has {len(cells)} cells for {len(header)} columns (an unquoted delimiter?)"
        return Row(number=number, where=where, problem=problem)
    return Row(number=number, where=where, record=dict(zip(header, cells, strict=False)))


def _read_parquet(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        columns = useful_columns(path.name, file.schema_arrow.names)
        yield from _batch_rows(file.iter_batches(batch_size=_BATCH_ROWS, columns=columns))


def _read_arrow(path: Path) -> Iterator[Row]:
    with pa.memory_map(str(path)) as source:
        batches: Iterable[pa.RecordBatch]
        try:
            reader = pa.ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        except pa.ArrowInvalid:  # the stream format, which Hugging Face writes
            source.seek(0)
            batches = reader = pa.ipc.open_stream(source)
        columns = useful_columns(path.name, reader.schema.names)
        yield from _batch_rows(batch.select(columns) for batch in batches)


def _batch_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            for record in batch.slice(start, _BATCH_ROWS).to_pylist():
                yield Row(number=number, where=f"row {number + 1}", record=record)
                number += 1


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
    ".jsonl.gz": _read_json_lines,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_csv,
}
