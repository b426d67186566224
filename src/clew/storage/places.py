"""A folder of files at a path or at a URL, behind one small interface. What never leaves the disk
keeps using `Path`s."""

import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from clew.base.urls import UrlPath, as_path
from clew.storage.place import AccessDeniedError, ChangedError, Content, Entry, Place, Range
from clew.storage.reading import irregular_kind, open_regular, read_open_file
from clew.storage.writing import create_file, is_temporary, lock_file, remove_abandoned, replacing

_LOCK_NAME = ".place.lock"
_COPY_BYTES = 1 << 20


class FolderPlace:
    """A folder. Its writers exclude each other with a lock that the kernel releases when a process
    dies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        return str(self.path)

    def child(self, name: str) -> "FolderPlace":
        return FolderPlace(self.path / name)

    def names(self, prefix: str = "") -> list[str]:
        try:
            found = [one.name for one in os.scandir(self.path) if one.is_file()]
        except FileNotFoundError:
            return []
        return sorted(name for name in found if name.startswith(prefix) and not _is_hidden(name))

    def entries(self) -> dict[str, Entry]:
        found = ((name, self.stat(name)) for name in self.names())
        return {name: entry for name, entry in found if entry is not None}

    def folders(self) -> list[str]:
        try:
            return sorted(one.name for one in os.scandir(self.path) if one.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def stat(self, name: str) -> Entry | None:
        path = self.path / name
        if irregular_kind(path) is not None:
            return None
        try:
            return _describe(path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str, max_bytes: int) -> Content:
        with open_regular(self.path / name) as file:
            version = _describe(os.fstat(file.fileno())).version
            return Content(data=read_open_file(file, max_bytes), version=version)

    def read_ranges(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        with open_regular(self.path / name) as file:
            pieces = [os.pread(file.fileno(), length, start) for start, length in ranges]
        for piece, (start, length) in zip(pieces, ranges, strict=True):
            if len(piece) != length:
                raise EOFError(f"{name} ends before byte {start + length:,}")
        return [memoryview(piece) for piece in pieces]

    def create(self, name: str, content: bytes | Path) -> bool:
        with self._changing():
            if os.path.lexists(self.path / name):
                return False
            self._write(name, content)
        return True

    def replace(self, name: str, content: bytes | Path, version: str | None) -> str:
        with self._changing():
            if version is not None:
                entry = self.stat(name)
                if entry is None or entry.version != version:
                    raise ChangedError(f"{name} in {self.url} was changed by another process.")
            return self._write(name, content)

    def fetch(self, name: str, path: Path) -> Entry:
        with open_regular(self.path / name) as source, create_file(path) as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
            return _describe(os.fstat(source.fileno()))

    def delete(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def remove_if_empty(self) -> None:
        """Removes the folder if it has no file and nobody is writing one."""
        if not self.path.is_dir() or self.names():
            return
        with suppress(OSError), lock_file(self.path / _LOCK_NAME, timeout_seconds=0):
            if not self.names():
                remove_abandoned(self.path)
                (self.path / _LOCK_NAME).unlink(missing_ok=True)
                self.path.rmdir()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._locked():
                yield
        except PermissionError as error:
            raise AccessDeniedError(
                f'the folder "{self.path}" cannot be written to ({error.strerror}): check its '
                "permissions."
            ) from None

    def _locked(self) -> AbstractContextManager[object]:
        """The lock of the folder, which another process may remove at any time."""
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                return lock_file(self.path / _LOCK_NAME).acquire()
            except (FileExistsError, FileNotFoundError):
                with suppress(FileNotFoundError):
                    if not stat.S_ISDIR(self.path.lstat().st_mode):
                        raise

    def _write(self, name: str, content: bytes | Path) -> str:
        with replacing(self.path / name) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with open_regular(content) as source:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
            file.flush()
            # The kernel's clock may stand still between two writes, and an inode is used again.
            now = time.time_ns()
            os.utime(file.fileno(), ns=(now, now))
            return _describe(os.fstat(file.fileno())).version


def _describe(found: os.stat_result) -> Entry:
    return Entry(size=found.st_size, version=f"{found.st_mtime_ns:x}-{found.st_ino:x}")


def _is_hidden(name: str) -> bool:
    return name == _LOCK_NAME or is_temporary(name)


def open_place(where: str | os.PathLike[str]) -> Place:
    """The place at a path or URL (`s3://bucket/prefix`, `gs://`, `az://`, `file://`). Nothing is
    read yet. Raises InputError if it is no such URL, or obstore is not installed."""
    path = as_path(where)
    if not isinstance(path, UrlPath):
        return FolderPlace(path)
    from clew.storage.object_store import ObjectPlace  # obstore is optional

    return ObjectPlace(str(path))
