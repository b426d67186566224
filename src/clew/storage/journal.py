"""An append-only file of JSON objects, one per line, each with its checksum. A line is on disk when
`append` returns; one that a kill cut off is ignored, and removed before the next is written."""

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from clew.base.errors import StoreError
from clew.base.texts import bytes_text
from clew.base.typed_json import compact_json, read_as
from clew.storage.reading import open_regular, parse_json
from clew.storage.writing import append_to_file, disk_errors, sync_folder

_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{16})"}\n')
_CHECKSUM_BYTES = len(',"checksum":""}\n') + 16
_LONGEST_LINE = 1 << 24
_CHUNK_BYTES = 1 << 12


class Journal:
    """Objects that this process reads and adds, beside other processes. Not for several threads at
    once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = self._read_bytes = self._lines = 0

    def is_replaced(self) -> bool:
        """Whether the file is another one than was read, or gone: then it is read from its
        start."""
        try:
            found = self.path.stat()
            is_same = found.st_ino == self._inode and found.st_size >= self._read_bytes
            inode = found.st_ino
        except OSError:
            is_same, inode = self._inode == 0, 0
        if not is_same:
            self._inode, self._read_bytes, self._lines = inode, 0, 0
        return not is_same

    def read_on(self) -> Iterator[dict[str, Any]]:
        """The objects that were added since the last call, by any process. Raises StoreError if a
        line is damaged."""
        try:
            with open_regular(self.path) as file:
                file.seek(self._read_bytes)
                yield from self._parse_lines(file)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._damaged("", error) from None

    def append(self, value: dict[str, Any]) -> None:
        """Add an object. Raises StoreError, DiskFullError or OSError; then the file is as
        before."""
        line = _seal(value)
        if len(line) >= _LONGEST_LINE:
            raise StoreError(f"a line of {bytes_text(len(line))} is too long to be read back.")
        with disk_errors(self.path.parent), append_to_file(self.path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            end, left = _whole_bytes(file), memoryview(line)
            file.truncate(end)
            try:
                while left:  # not by the file's buffer, which would try again when it is closed
                    left = left[os.write(file.fileno(), left) :]
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise
            if not end:
                sync_folder(self.path.parent)

    def _parse_lines(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        while line := file.readline(_LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                return  # cut off by a kill, or still being written
            try:
                value = _unseal(line)
            except ValueError as error:
                raise self._damaged(f"line {self._lines + 1:,} of ", error) from None
            self._read_bytes += len(line)
            self._lines += 1
            yield value

    def _damaged(self, where: str, error: Exception) -> StoreError:
        return StoreError(
            f'{where}"{self.path}" cannot be read ({error}): restore the file from a backup, or '
            "rename it to start over."
        )


def _seal(value: dict[str, Any]) -> bytes:
    body = compact_json(value).encode()[:-1]
    return body + f',"checksum":"{xxhash.xxh3_64_hexdigest(body)}"}}\n'.encode()


def _unseal(line: bytes) -> dict[str, Any]:
    body, found = line[:-_CHECKSUM_BYTES], _CHECKSUM.fullmatch(line[-_CHECKSUM_BYTES:])
    if found is None or xxhash.xxh3_64_hexdigest(body).encode() != found[1]:
        raise ValueError("its checksum does not match")
    value: dict[str, Any] = read_as(dict[str, Any], parse_json(body + b"}", encodable=False))
    return value


def _whole_bytes(file: BinaryIO) -> int:
    """The length of the lines that are complete."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK_BYTES)
        file.seek(start)
        if place := file.read(end - start).rfind(b"\n") + 1:
            return start + place
        end = start
    return 0
