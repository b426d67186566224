"""What every place can do, a folder or a prefix of an object store, and the errors it raises."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from clew.base.cores import map_ahead
from clew.base.errors import StoreError

# The first byte and the number of bytes.
Range = tuple[int, int]
# One connection to an object store gives 50 to 100 MB/s; 16 fill a link of 10 Gbit/s.
_CONNECTIONS = 16
PART_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file: its size in bytes, and a `version` that changes with its content."""

    size: int
    version: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """The bytes of a small file, and the version they are of."""

    data: bytes
    version: str


class ChangedError(StoreError):
    """Another process replaced the file since its version was read."""


class AccessDeniedError(StoreError):
    """The credentials are missing, expired, or do not allow this."""


class UnreachableError(StoreError):
    """The server did not answer, or answered with errors, for as long as was tried again."""


class Place(Protocol):
    """A folder of files, at a path or under a prefix of an object store. Names contain no "/".

    What cannot be reached, is not allowed or does not exist at all (a bucket) raises StoreError
    with one sentence, after transient errors were tried again.
    """

    @property
    def url(self) -> str:
        """What messages show: the path or URL, never credentials or a query string."""

    def child(self, name: str) -> "Place":
        """A folder in this folder. Folders need not be created."""

    def names(self, prefix: str = "") -> list[str]:
        """The sorted names of the files in this folder itself that start with `prefix`."""

    def entries(self) -> dict[str, Entry]:
        """The files in this folder itself with their sizes and versions, at the price of a
        listing."""

    def folders(self) -> list[str]:
        """The sorted names of the folders in this folder."""

    def stat(self, name: str) -> Entry | None:
        """The size and version of a file, None if there is none."""

    def read(self, name: str, max_bytes: int) -> Content:
        """A whole file; raises FileNotFoundError, and ValueError if it is larger."""

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        """Several pieces of a file at the cost of one request after another's answer: those that
        lie close together are fetched as one, the others at the same time. Raises
        FileNotFoundError, and EOFError if the file ends before a range does."""

    def create(self, name: str, content: bytes | Path) -> bool:
        """Writes a new file, in one step for readers; False if the name is taken. Of several
        processes that create the same name, exactly one gets True."""

    def replace(self, name: str, content: bytes | Path, version: str | None) -> str:
        """Writes a file and returns its new version. With a `version`, only if that is the current
        one; raises ChangedError otherwise. With None, whatever is there."""

    def fetch(self, name: str, path: Path) -> Entry:
        """Copies a file to `path`, which must not exist; raises FileNotFoundError."""

    def delete(self, *names: str) -> None:
        """Deletes files, several in one request; missing ones are fine. Raises AccessDeniedError if
        that is not allowed, which a writer should survive."""


@cache
def connections() -> ThreadPoolExecutor:
    """The threads of this process that wait for answers. Only they call the place: at the end of
    the program they are waited for, however the work that they do was stopped."""
    return ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="clew-fetch")


os.register_at_fork(after_in_child=connections.cache_clear)


def download(place: Place, name: str, size: int, descriptor: int) -> str:
    """Writes the file into an open one and returns its SHA-256; at most 17 parts of 4 MiB are in
    memory. Raises FileNotFoundError, EOFError if it is shorter than `size`, and OSError."""

    def fetch(start: int) -> memoryview:
        [part] = place.read_ranges(name, [(start, min(PART_BYTES, size - start))])
        _write(descriptor, part, start)
        return part

    digest = hashlib.sha256()
    starts = range(0, size, PART_BYTES)
    for part in map_ahead(fetch, starts, connections(), ahead=_CONNECTIONS):
        digest.update(part)
    return digest.hexdigest()


def _write(descriptor: int, part: memoryview, start: int) -> None:
    done = 0
    while done < len(part):
        done += os.pwrite(descriptor, part[done:], start + done)
