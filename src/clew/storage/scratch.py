"""Folders on this machine for what is on its way to a URL. They are removed at the end, and those
of a process that was killed by the next one."""

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from clew.base.errors import InputError
from clew.base.urls import UrlPath
from clew.storage.places import open_place

_LOCK = ".lock"


class ScratchFolder:
    """A new, empty folder in the system's folder for temporary files (TMPDIR)."""

    def __init__(self) -> None:
        root = scratch_root()
        _remove_abandoned(root)
        self._lock = _create_lock(root)
        self.path = Path(self._lock.name).with_suffix("")
        self.path.mkdir()

    def remove(self) -> None:
        """Removes the folder with everything in it; a second call does nothing."""
        if not self._lock.closed:
            _remove(Path(self._lock.name))
            self._lock.close()


@contextmanager
def fetched(store: Path, name: str) -> Iterator[Path]:
    """A file of a store in a folder or at a URL, as a file on this machine until the block ends.
    There is none at the path if there is none in the store."""
    if not isinstance(store, UrlPath):
        yield store / name
        return
    folder = ScratchFolder()
    try:
        with suppress(FileNotFoundError):
            open_place(store).fetch(name, folder.path / name)
        yield folder.path / name
    finally:
        folder.remove()


@contextmanager
def placing(store: Path, name: str) -> Iterator[Path]:
    """A file on this machine that the block writes, and that is then put into a folder or at a URL
    under `name`."""
    if not isinstance(store, UrlPath):
        yield store / name
        return
    folder = ScratchFolder()
    try:
        yield folder.path / name
        open_place(store).replace(name, folder.path / name, None)
    finally:
        folder.remove()


def scratch_root() -> Path:
    """The folder of this user's scratch folders. In a folder that everyone may write to, somebody
    else may have taken its name."""
    root = Path(tempfile.gettempdir()) / f"clew-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InputError(f'"{root}" belongs to somebody else: set TMPDIR to another folder.')
    return root


def _create_lock(root: Path) -> BinaryIO:
    while True:
        file = open(root / f"{secrets.token_hex(8)}{_LOCK}", "xb")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(file.name):  # not removed between the two
            return file
        file.close()


def _remove_abandoned(root: Path) -> None:
    for lock in root.glob(f"*{_LOCK}"):
        with suppress(OSError), open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock)


def _remove(lock: Path) -> None:
    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    lock.unlink(missing_ok=True)
