"""Folders of results: one at a URL is a folder on this machine, whose files are fetched before they
are read and published when they are written; and which files in it are clew's own: only those are
ever replaced or removed."""

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from clew.base.errors import InputError
from clew.base.urls import UrlPath
from clew.storage.mirror import UrlCopy, copy_of
from clew.storage.place import AccessDeniedError, ChangedError, Place
from clew.storage.places import open_place
from clew.storage.reading import RemoteFile

# By the folder of a working copy and the URL of a file: the version that this process knows, None
# if there was no such file.
_versions: dict[Path, dict[str, str | None]] = {}


_LOCK = ".lock"


@contextmanager
def working_copy(folder: Path) -> Iterator[Path]:
    """The folder as a path on this machine until the block ends: itself, unless it is at a URL."""
    if not isinstance(folder, UrlPath):
        yield folder
        return
    with ScratchFolder() as scratch:
        copy = copy_of(str(folder), scratch, WorkingCopy)
        copy.mkdir(parents=True)
        try:
            yield copy
        finally:
            _versions.pop(scratch, None)


@contextmanager
def optional_copy(folder: Path | None) -> Iterator[Path | None]:
    """As `working_copy`; None stays None."""
    with nullcontext() if folder is None else working_copy(folder) as here:
        yield here


def find_files(folder: Path, prefix: str) -> list[Path]:
    """The files in a folder whose names start with `prefix`, also those that were not fetched."""
    here = {path.name for path in folder.glob(f"{prefix}*")}
    there = open_place(folder.url).names(prefix) if isinstance(folder, WorkingCopy) else ()
    return [folder / name for name in sorted(here.union(there))]


class WorkingCopy(UrlCopy, RemoteFile):
    """A file or folder in a working copy. What another process has put at the URL since this one
    last saw it is never overwritten: that raises ChangedError."""

    def fetch(self) -> None:
        found = self._folder.stat(self.name)
        if found is None:
            if self._known.get(self.url) is not None:
                super().unlink(missing_ok=True)
            self._known[self.url] = None
        elif self._known.get(self.url) != found.version:
            super().unlink(missing_ok=True)
            self.parent.mkdir(parents=True, exist_ok=True)
            self._known[self.url] = self._folder.fetch(self.name, self._local).version

    def publish(self) -> None:
        before = self._known.get(self.url)
        if self.url in self._known and before is None:
            self._create()
        else:
            self._known[self.url] = self._folder.replace(self.name, self._local, before)

    def exists(self, **options: Any) -> bool:
        self.fetch()
        return super().exists(**options)

    def is_file(self) -> bool:
        self.fetch()
        return super().is_file()

    def unlink(self, missing_ok: bool = False) -> None:
        """Also at the URL; raises AccessDeniedError if nothing may be deleted there."""
        there = self._folder.stat(self.name)
        super().unlink(missing_ok=missing_ok or there is not None)
        if there is not None:
            self._folder.delete(self.name)
        self._known[self.url] = None

    def replace(self, target: Any) -> Any:
        """Where nothing may be deleted, the file stays at its old name too."""
        moved = super().replace(target)
        moved.publish()
        with suppress(AccessDeniedError):
            self.unlink(missing_ok=True)
        return moved

    def _create(self) -> None:
        if not self._folder.create(self.name, self._local):
            raise ChangedError(f"{self.name} in {self.parent} was created by another process.")
        found = self._folder.stat(self.name)
        self._known[self.url] = None if found is None else found.version

    @property
    def _folder(self) -> Place:
        return open_place(self.parent.url)

    @property
    def _local(self) -> Path:
        """As a path like any other, which is not fetched when it is opened."""
        return Path(str(self))

    @property
    def _known(self) -> dict[str, str | None]:
        return _versions.setdefault(self.base, {})


class ScratchFolder:
    """A new, empty folder in the system's folder for temporary files (TMPDIR)."""

    def __init__(self) -> None:
        root = scratch_root()
        _remove_abandoned(root)
        self._lock = _create_lock(root)
        self.path = Path(self._lock.name).with_suffix("")
        self.path.mkdir()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

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
    with ScratchFolder() as folder:
        with suppress(FileNotFoundError):
            open_place(store).fetch(name, folder / name)
        yield folder / name


@contextmanager
def placing(store: Path, name: str) -> Iterator[Path]:
    """A file on this machine that the block writes, and that is then put into a folder or at a URL
    under `name`."""
    if not isinstance(store, UrlPath):
        yield store / name
        return
    with ScratchFolder() as folder:
        yield folder / name
        open_place(store).replace(name, folder / name, None)


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
