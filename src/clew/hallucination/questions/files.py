"""Questions from a local file: JSON, JSON Lines, CSV, TSV, Parquet or Arrow."""

import csv
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from clew.base.errors import InputError
from clew.base.texts import counted
from clew.hallucination.questions.columns import read_arrow, read_parquet
from clew.hallucination.questions.records import Row, RowSource, first_line, plain_fields
from clew.storage.arrow import ARROW_ERRORS
from clew.storage.reading import NotRegularFileError, open_regular, parse_json
from clew.storage.text_files import (
    MAX_RECORD_CHARACTERS,
    BoundedLines,
    CsvRecords,
    TooLongError,
    open_text,
)

# A JSON file is one value, which is in memory as a whole; a value takes up to 64 bytes there.
_MAX_JSON_CHARACTERS = 1 << 27
_MAX_JSON_VALUES = 1 << 23
_NAMED_LINES = 5
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
        open_regular(path).close()
        yield from READERS[ending](path)
    except NotRegularFileError as error:
        raise InputError(
            f"{path}: {error.strerror}: write the questions to a file first, such as "
            "questions.jsonl"
        ) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path} is not UTF-8 text (found the byte 0x{byte:02x}): save it as UTF-8"
        ) from error
    except (EOFError, zlib.error, *ARROW_ERRORS) as error:
        raise InputError(
            f"{path} cannot be read as {ending} ({first_line(error)}): check the file"
        ) from error


def file_ending(path: Path) -> str:
    """The file's format by its extension, such as ".csv" or ".jsonl.gz"."""
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings) if endings[-1:] == [".gz"] else "".join(endings[-1:])


def _read_json_lines(path: Path) -> Iterator[Row]:
    number = 0
    with open_text(path) as file:
        for line_number, line in enumerate(_each_record(BoundedLines(file)), start=1):
            if isinstance(line, str) and not line.strip():
                continue
            where = f"line {line_number}"
            if isinstance(line, str):
                yield _json_row(number, where, line)
            else:
                yield Row(number=number, where=where, problem=str(line))
            # A malformed line is counted, so that fixing it does not change the id of any other
            # record.
            number += 1


def _each_record(source: BoundedLines | CsvRecords) -> Iterator[Any]:
    """The records, and the errors in place of those that cannot be read."""
    while True:
        try:
            yield next(source)
        except StopIteration:
            return
        except (csv.Error, TooLongError) as error:
            yield error


def _json_row(number: int, where: str, line: str) -> Row:
    try:
        return Row(
            number=number, where=where, record=parse_json(line, finite=False, encodable=False)
        )
    except ValueError as error:
        return Row(number=number, where=where, problem=f"it is not JSON ({error})")


def _read_json(path: Path) -> Iterator[Row]:
    with open_text(path) as file:
        text = file.read(_MAX_JSON_CHARACTERS + 1)
    if _is_json_lines(text):
        yield from _read_json_lines(path)
        return
    _check_json_size(path, text)
    try:
        records = parse_json(text, finite=False, encodable=False) if text.strip() else []
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): fix it or save it again") from error
    if isinstance(records, dict):
        fields = plain_fields(records)
        records = fields.get("data", fields.get("questions"))
    if not isinstance(records, list):
        raise InputError(
            f'{path} does not contain a list of records: write [...] or {{"data": [...]}}'
        )
    for number, record in enumerate(records):
        yield Row(number=number, where=f"row {number + 1}", record=record)


def _is_json_lines(text: str) -> bool:
    """Many .json files hold one record per line: a whole one on the first line, and more."""
    first, _, rest = text.lstrip()[:MAX_RECORD_CHARACTERS].partition("\n")
    if not first.startswith("{") or not rest.strip():
        return False
    try:
        return isinstance(parse_json(first, finite=False, encodable=False), dict)
    except ValueError:
        return False


def _check_json_size(path: Path, text: str) -> None:
    values = sum(map(text.count, ",[{"))
    if len(text) > _MAX_JSON_CHARACTERS or values > _MAX_JSON_VALUES:
        raise InputError(
            f"{path} is too large for one JSON value (at most {_MAX_JSON_CHARACTERS:,} characters "
            f"and about {_MAX_JSON_VALUES:,} values): save it as JSON Lines (.jsonl), one record "
            "per line, which is read line by line"
        )


def _find_delimiter(file: TextIO) -> str:
    """Find the delimiter of a CSV file: the candidate that occurs most often in the header
    (spreadsheets in many countries write semicolons). The file is rewound to its start."""
    lines = _each_record(BoundedLines(file))
    header = next((line for line in lines if isinstance(line, str) and line.strip()), "")
    file.seek(0)
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=bare.count)


def _read_csv(path: Path) -> Iterator[Row]:
    with open_text(path) as file:
        delimiter = "\t" if ".tsv" in file_ending(path) else _find_delimiter(file)
        records = CsvRecords(file, delimiter)
        header: list[str] | None = None
        number, last_line = 0, 0
        blank: list[int] = []
        for cells in _each_record(records):
            first, last_line = last_line + 1, records.line
            if isinstance(cells, list) and not any(map(str.strip, cells)):
                if cells and header is not None:  # an empty line is none of the table's
                    blank.append(last_line)
                continue
            if isinstance(cells, list) and header is None:
                header = cells
                continue
            where = f"row {number + 1}"
            if isinstance(cells, list):
                yield _csv_row(number, where, header or [], cells)
            else:
                problem = f"lines {first} to {last_line} are not valid CSV ({cells})"
                yield Row(number=number, where=where, problem=problem)
            number += 1
    if blank:
        yield _blank_row(number, blank)


def _blank_row(number: int, lines: list[int]) -> Row:
    """All blank rows together, at the end: spreadsheets write thousands of them."""
    some = ", ".join(f"{line:,}" for line in lines[:_NAMED_LINES])
    more = ", ..." if len(lines) > _NAMED_LINES else ""
    where = f"{counted(len(lines), 'row')} (line{'s' if len(lines) > 1 else ''} {some}{more})"
    return Row(number=number, where=where, problem="all cells are empty", is_blank=True)


def _csv_row(number: int, where: str, header: list[str], cells: list[str]) -> Row:
    if len(cells) > len(header):
        problem = f"it has {len(cells)} cells for {len(header)} columns (an unquoted delimiter?)"
        return Row(number=number, where=where, problem=problem)
    return Row(number=number, where=where, record=dict(zip(header, cells, strict=False)))


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".jsonl.gz": _read_json_lines,
    ".csv.gz": _read_csv,
    ".tsv.gz": _read_csv,
}
