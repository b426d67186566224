"""The one way to write a file into a store or a result folder: created exclusively, never through a
link, synced, and moved into place atomically. Readers see the old file or the new one."""

import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from clew.base.errors import DiskFullError, StoreError
from clew.base.texts import bytes_text
from clew.base.typed_json import to_json
from clew.storage.reading import RemoteFile, irregular_kind, seal

# A file being replaced; earlier versions used the number of the process.
_TEMPORARY = re.compile(r"(.+)\.([0-9a-f]{8}|[0-9]+)\.tmp")
_ENDING = ".tmp"
_BUFFER_BYTES = 1 << 20


def replace_file(path: Path, content: bytes) -> None:
    """Writes the whole file, or keeps the existing one. Raises DiskFullError when it does not
    fit."""
    with replacing(path) as file:
        file.write(content)


def replace_json(path: Path, value: Any) -> None:
    """As `replace_file`, with a JSON object that has a checksum. NaN and infinity become null."""
    replace_file(path, seal(to_json(value, indent=1)))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that replaces it at the end; after an error nothing has changed.

    Code that can only write to a name may use the file's `name` instead. What killed processes left
    of the same file is removed.
    """
    with disk_errors(path.parent):
        remove_abandoned(path.parent, path.name)
        file = _create_locked(path)
        part, held = Path(file.name), os.dup(file.fileno())
        try:
            with file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                yield file
            _sync_file(part, mode)
            put_in_place(part, path)
        finally:
            part.unlink(missing_ok=True)
            os.close(held)


def _create_locked(path: Path) -> BinaryIO:
    """A new file beside `path`. The kernel holds its lock as long as this process lives, which is
    how others tell it from an abandoned one."""
    while True:
        file = create_file(path.with_name(f"{path.name}.{secrets.token_hex(4)}{_ENDING}"))
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # not removed between the two
            return file
        file.close()


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Deletes what killed processes left half-written, of all files or of the one with this name;
    what a living process writes stays."""
    for part in folder.glob(f"{'' if name is None else glob.escape(name)}*{_ENDING}"):
        match = _TEMPORARY.fullmatch(part.name)
        if match is None or name not in (None, match[1]):
            continue
        if irregular_kind(part, follow_links=False) is not None:
            continue
        with suppress(OSError), open(part, "rb", opener=open_no_link) as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def create_file(path: Path) -> BinaryIO:
    """Opens a new file for writing; raises FileExistsError if the name is taken."""
    return open(path, "xb", buffering=_BUFFER_BYTES, opener=open_no_link)  # noqa: SIM115


def append_to_file(path: Path) -> BinaryIO:
    """Opens a file, new or existing, to add to its end and to read it; raises StoreError if a link
    or anything else that is not a regular file has its name."""
    is_leftover(path)
    return open(path, "ab+", opener=open_no_link)  # noqa: SIM115


def lock_file(path: Path, *, timeout_seconds: float = -1) -> filelock.BaseFileLock:
    """A lock that the kernel releases when its process dies. The library empties the file that it
    locks, so a link in its place is refused with StoreError."""
    is_leftover(path)
    return filelock.FileLock(path, timeout=timeout_seconds)


def open_no_link(path: str, flags: int) -> int:
    """An opener that does not follow a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def put_in_place(part: Path, path: Path) -> None:
    """Renames, and syncs the folder so that the new name survives a crash."""
    part.replace(path)
    sync_folder(path.parent)
    if isinstance(path, RemoteFile):
        path.publish()


def is_leftover(path: Path) -> bool:
    """Whether an earlier process left this file. Raises StoreError if it is not a regular file: a
    link, a folder or a pipe is not ours to write through."""
    kind = irregular_kind(path, follow_links=False)
    if kind is not None:
        raise StoreError(
            f'"{path}" is {kind}, but clew has to write a file there: move it elsewhere, then run '
            "the same command again."
        )
    return os.path.exists(path)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that is being replaced."""
    return _TEMPORARY.fullmatch(name) is not None


def written_name(name: str) -> str:
    """The name of the file that one of this name replaces; the same for any other."""
    match = _TEMPORARY.fullmatch(name)
    return name if match is None else match[1]


def remove_temporaries(folder: Path, *names: str) -> None:
    """Deletes what killed processes left half-written of files with these names; only for their
    sole writer."""
    for part in folder.glob(f"*{_ENDING}"):
        match = _TEMPORARY.fullmatch(part.name)
        if match is None or match[1] not in names:
            continue
        if irregular_kind(part, follow_links=False) is None:
            part.unlink(missing_ok=True)


def _sync_file(path: Path, mode: int) -> None:
    """Reopens the file, because a library given the name may have replaced it, with other
    permissions; permissions that are already right are not set, as some file systems cannot change
    them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class disk_errors:  # noqa: N801 - reads as a phrase: with disk_errors(folder)
    """Turns the operating system's "no space left" into an error that says what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f'the disk that holds "{os.fspath(self.folder)}" is full. Everything written so '
                "far is kept. Free some space, then run the same command again to resume."
            ) from error


def refuse_full_disk(folder: Path, needed_bytes: int, *, what: str, advice: str) -> None:
    """Raises DiskFullError when `needed_bytes` do not fit. `what` is the start of the sentence, up
    to the number of bytes; `advice` is a separate sentence."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise DiskFullError(
            f'{what} {bytes_text(needed_bytes)}, but the disk that holds "{folder}" has '
            f"{bytes_text(free)} free. {advice}"
        )
