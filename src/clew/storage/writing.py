"""The one way to write a file into a store or a result folder: created exclusively, never through a
link, synced, and moved into place atomically. Readers see the old file or the new one."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clew.errors import StoreError
from clew.storage.disk import disk_errors

_ENDING = ".tmp"
_BUFFER_BYTES = 1 << 20


def replace_file(path: Path, content: bytes) -> None:
    """Writes the whole file, or keeps the existing one. Raises DiskFullError when it does not
    fit."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that replaces it at the end; after an error nothing has changed.

    Code that can only write to a name may use the file's `name` instead.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_ENDING}")
    with disk_errors(path.parent):
        try:
            with create_file(part) as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                yield file
            _sync_file(part, mode)
            put_in_place(part, path)
        finally:
            part.unlink(missing_ok=True)


def create_file(path: Path) -> BinaryIO:
    """Opens a new file for writing; raises FileExistsError if the name is taken."""
    return open(path, "xb", buffering=_BUFFER_BYTES, opener=_open_no_link)  # noqa: SIM115


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def put_in_place(part: Path, path: Path) -> None:
    """Renames, and syncs the folder so that the new name survives a crash."""
    part.replace(path)
    sync_folder(path.parent)


def is_leftover(path: Path) -> bool:
    """Whether an earlier process left this file. Raises StoreError if it is not a regular file: a
    link, a folder or a pipe is not ours to write through."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder or a device, not a file"
        raise StoreError(
            f'"{path}" is {kind}, but clew has to write a file there: move it elsewhere, then run '
            "the same command again."
        )
    return True


def remove_temporaries(folder: Path) -> None:
    """Deletes what killed processes left half-written; only for the folder's sole writer."""
    for part in folder.glob(f"*.{'[0-9a-f]' * 8}{_ENDING}"):
        if is_leftover(part):
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
