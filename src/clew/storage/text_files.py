"""Text files that somebody else may have written, read line by line in bounded memory, and the one
way to write and read CSV files."""

import codecs
import csv
import gzip
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from clew.base.texts import bytes_text, for_csv, from_csv
from clew.storage.reading import open_regular
from clew.storage.writing import replace_file

# A line, or a CSV record, which may span lines. Beside a question there may be a whole article.
MAX_RECORD_CHARACTERS = 1 << 24
# Text compresses 3 to 20 times. More is a decompression bomb, except in small files.
_MAX_RATIO = 200
_FREE_BYTES = 1 << 23
# Each line takes time, and nothing in a run of empty ones.
_MAX_EMPTY_LINES = 1_000_000
_EMPTY = frozenset(("\n", "\r", "\r\n"))
_SKIPPED_AT_ONCE = 1 << 20
# Windows-1252 has the letters of Latin-1, and quotes where that has none. It lacks five bytes;
# those below a space, but for line ends, are in no text.
_UTF8, _LATIN = "utf-8-sig", "cp1252"
_NOT_LATIN = re.compile(rb"[\x00-\x08\x0e-\x19\x1b-\x1f\x7f\x81\x8d\x8f\x90\x9d]")
_LOOKED_AT = 1 << 12
_DELIMITERS = ",;\t|"  # of several equally frequent ones, the first
# By default, csv rejects fields of more than 131,072 characters.
csv.field_size_limit(MAX_RECORD_CHARACTERS)


class TooLongError(ValueError):
    """A line or a record is longer than allowed."""


class _BoundedGzip(gzip.GzipFile):
    """Stops decompressing where no text would have come from so few bytes."""

    def __init__(self, file: Any, max_bytes: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._left, self._max_bytes = max_bytes, max_bytes
        self._packed = file

    def read1(self, size: int = -1) -> bytes:
        content = super().read1(size)
        self._left -= len(content)
        if self._left < 0:
            raise gzip.BadGzipFile(
                f"it decompresses to more than {bytes_text(self._max_bytes)}, over {_MAX_RATIO} "
                "times its size; if you trust it, decompress it first"
            )
        return content

    def close(self) -> None:
        super().close()
        self._packed.close()


def open_text(path: Path, encoding: str | None = None) -> TextIO:
    """Text, line endings unchanged (as csv requires); a .gz file is decompressed. Without an
    encoding, it is recognized: UTF-8 or UTF-16, with or without a byte order mark, or Latin-1.
    Raises OSError, also for a pipe and, while reading, for a decompression bomb."""
    if encoding is None:
        about = path.stat()
        encoding = _find_encoding(path, about.st_size, about.st_mtime_ns)
    elif codecs.lookup(encoding).name == "utf-8":
        encoding = _UTF8
    return io.TextIOWrapper(_open_raw(path), encoding=encoding, newline="")


def encoding_name(file: TextIO) -> str:
    """The encoding as people call it, "" for UTF-8."""
    name = codecs.lookup(file.encoding).name
    return {"utf-8-sig": "", "cp1252": "Latin-1"}.get(name, name.upper())


@lru_cache(maxsize=64)
def _find_encoding(path: Path, _size: int, _changed: int) -> str:
    """UTF-8 if all of the file is."""
    with _open_raw(path) as raw:
        decoder = codecs.getincrementaldecoder("utf-8")()
        is_first = True
        while chunk := raw.read1(_SKIPPED_AT_ONCE):
            if is_first and (wide := _find_wide(chunk)):
                return wide
            is_first = False
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError:
                return _LATIN if _looks_latin(chunk) else _UTF8
    return _UTF8


def _find_wide(chunk: bytes) -> str | None:
    """UTF-16 by its byte order mark, or by the zeros of Latin letters."""
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    some = chunk[:_LOOKED_AT]
    even, odd = some[::2].count(0), some[1::2].count(0)
    if 2 * max(even, odd) <= len(some) // 2 or min(even, odd) > len(some) // 50:
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


def _looks_latin(chunk: bytes) -> bool:
    """Whether a text that is not UTF-8 is rather in Latin-1 than damaged or no text at all."""
    text = chunk.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    whole = sum(character > "\x7f" for character in text) - damaged
    return damaged > whole and not _NOT_LATIN.search(chunk)


def _open_raw(path: Path) -> Any:
    raw: Any = open_regular(path)
    if path.suffix.lower() == ".gz":
        size = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        raw = _BoundedGzip(raw, _MAX_RATIO * size + _FREE_BYTES)
    return raw


class BoundedLines:
    """The lines of a text file. One that is too long is read past and raises TooLongError; the
    iteration can continue after it. A million empty ones in a row raise OSError. `number` is that
    of the last line, from 1."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = self._empty = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return self.read(MAX_RECORD_CHARACTERS)

    def read(self, max_characters: int) -> str:
        line = self._file.readline(max_characters + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self._empty = self._empty + 1 if line in _EMPTY else 0
        if self._empty > _MAX_EMPTY_LINES:
            raise OSError(f"line {self.number:,} is the last of {self._empty:,} empty ones")
        if len(line) > max_characters:
            raise TooLongError(
                f"line {self.number} has {self._skip_rest(line):,} characters; a record may have "
                f"at most {MAX_RECORD_CHARACTERS:,}"
            )
        return line

    def _skip_rest(self, line: str) -> int:
        length = len(line)
        while line and not line.endswith(("\n", "\r")):
            line = self._file.readline(_SKIPPED_AT_ONCE)
            length += len(line)
        return length


class _RecordLines(BoundedLines):
    """Lines of which several may belong to one record: together they are bounded."""

    _room = MAX_RECORD_CHARACTERS

    def start_record(self) -> None:
        self._room = MAX_RECORD_CHARACTERS

    def __next__(self) -> str:
        line = self.read(self._room)
        self._room -= len(line)
        return line


class CsvRecords:
    """The records of a CSV file, as lists of cells. A malformed one raises csv.Error, one that
    is too long also TooLongError; the iteration can continue with the next line. Without a
    `delimiter`, it is found in the header of the file, which must be at its start."""

    def __init__(self, file: TextIO, delimiter: str | None = ",") -> None:
        self.delimiter = _find_delimiter(file) if delimiter is None else delimiter
        self._lines = _RecordLines(file)
        # Strict, since an unclosed quote would silently swallow the lines after it.
        self._reader = csv.reader(self._lines, delimiter=self.delimiter, strict=True)

    @property
    def line(self) -> int:
        """The number of the last line that was read."""
        return self._lines.number

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self._lines.start_record()
        return next(self._reader)


def _find_delimiter(file: TextIO) -> str:
    """The candidate that occurs most often in the first line with any text (spreadsheets in many
    countries write semicolons). The file is rewound to its start."""
    lines, header = BoundedLines(file), ""
    while not header.strip():
        try:
            header = next(lines)
        except TooLongError:
            continue
        except StopIteration:
            break
    file.seek(0)
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_DELIMITERS, key=bare.count)


def find_csv_form(path: Path) -> tuple[str, str]:
    """The encoding and the delimiter of a CSV file, for other readers. Raises OSError, and
    ValueError if it is no text."""
    with open_text(path) as file:
        found = codecs.lookup(file.encoding).name.removesuffix("-sig")
        return found, CsvRecords(file, None).delimiter


def csv_text(rows: Iterable[Sequence[Any]], *, line_end: str = "\n") -> str:
    """Rows as CSV in which a spreadsheet finds no formula; numbers stay as they are."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    for row in rows:
        writer.writerow([for_csv(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file atomically."""
    replace_file(path, csv_text([columns, *rows]).encode())


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a file that `write_csv` wrote, exactly as they were; raises OSError, and
    ValueError if it is not valid CSV. A short row has fewer columns."""
    # Earlier versions wrote file names that are not valid text as their bytes.
    raw = open_regular(path)
    with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        records = CsvRecords(file, None)
        try:
            columns, *rows = [[from_csv(cell) for cell in cells] for cells in records] or [[]]
        except csv.Error as error:
            raise ValueError(f"line {records.line}: {error}") from None
    return [dict(zip(columns, cells, strict=False)) for cells in rows if cells]
