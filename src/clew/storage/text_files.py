"""Text files that somebody else may have written, read line by line in bounded memory, and the one
way to write and read CSV files."""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
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


def open_text(path: Path) -> TextIO:
    """Text in UTF-8 with or without a byte order mark, line endings unchanged (as csv requires);
    a .gz file is decompressed. Raises OSError, also for a pipe and, while reading, for a
    decompression bomb."""
    raw: Any = open_regular(path)
    if path.suffix.lower() == ".gz":
        size = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        raw = _BoundedGzip(raw, _MAX_RATIO * size + _FREE_BYTES)
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


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
    is too long also TooLongError; the iteration can continue with the next line."""

    def __init__(self, file: TextIO, delimiter: str = ",") -> None:
        self._lines = _RecordLines(file)
        # Strict, since an unclosed quote would silently swallow the lines after it.
        self._reader = csv.reader(self._lines, delimiter=delimiter, strict=True)

    @property
    def line(self) -> int:
        """The number of the last line that was read."""
        return self._lines.number

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        self._lines.start_record()
        return next(self._reader)


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
        records = CsvRecords(file)
        try:
            columns, *rows = [[from_csv(cell) for cell in cells] for cells in records] or [[]]
        except csv.Error as error:
            raise ValueError(f"line {records.line}: {error}") from None
    return [dict(zip(columns, cells, strict=False)) for cells in rows if cells]
