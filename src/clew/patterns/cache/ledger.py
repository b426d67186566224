"""Files that have no row of their own: copies of a picture that is there, and faulty ones.

They are remembered so that they need not be opened again. What is lost of this is found anew.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import PIL

from clew.storage.disk import disk_errors
from clew.version import __version__

LEDGER_NAME = "other_files.jsonl"
# Another clew or another Pillow may be able to read what these could not.
_READ_BY = f"clew {__version__}, Pillow {PIL.__version__}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherFile:
    """A file by its key, with the digest of its picture, or what is wrong with it."""

    key: str
    digest: str | None = None
    kind: str | None = None
    reason: str | None = None


class Ledger:
    """A line a file, only ever added to: a kill costs the last line at most."""

    def __init__(self, store: Path) -> None:
        self._path = store / LEDGER_NAME

    def read(self) -> list[OtherFile]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            parsed = [_parse(line) for line in file]
        return [entry for entry in parsed if entry is not None]

    def add(self, entries: Iterable[OtherFile]) -> None:
        """Raises DiskFullError when there is no room."""
        lines = b"".join(map(_line, entries))
        if not lines:
            return
        with disk_errors(self._path.parent), self._path.open("ab+", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size
            if whole:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            file.write(lines)


def _line(entry: OtherFile) -> bytes:
    filled = {name: value for name, value in asdict(entry).items() if value is not None}
    return json.dumps({**filled, "read_by": _READ_BY}).encode() + b"\n"


def _parse(line: bytes) -> OtherFile | None:
    """None for a line that was cut, and for a fault that is to be looked at again."""
    try:
        found: Any = json.loads(line)
        read_by = found.pop("read_by")
        entry = OtherFile(**found)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    is_whole = isinstance(entry.key, str) and (entry.digest is None) != (entry.kind is None)
    return entry if is_whole and (entry.digest is not None or read_by == _READ_BY) else None
