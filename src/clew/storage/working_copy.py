"""A folder of results at a URL, as a folder on this machine: a file is fetched before it is read,
and goes to the URL before the call that writes it returns."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clew.base.urls import UrlPath
from clew.storage.mirror.path import UrlCopy, copy_of
from clew.storage.places import AccessDeniedError, ChangedError, Place, open_place
from clew.storage.reading import RemoteFile
from clew.storage.scratch import ScratchFolder

# By the folder of a working copy and the URL of a file: the version that this process knows, None
# if there was no such file.
_versions: dict[Path, dict[str, str | None]] = {}


@contextmanager
def working_copy(folder: Path) -> Iterator[Path]:
    """The folder as a path on this machine until the block ends: itself, unless it is at a URL."""
    if not isinstance(folder, UrlPath):
        yield folder
        return
    scratch = ScratchFolder()
    try:
        copy = copy_of(str(folder), scratch.path, WorkingCopy)
        copy.mkdir(parents=True)
        yield copy
    finally:
        _versions.pop(scratch.path, None)
        scratch.remove()


@contextmanager
def optional_copy(folder: Path | None) -> Iterator[Path | None]:
    """As `working_copy`; None stays None."""
    if folder is None:
        yield None
        return
    with working_copy(folder) as here:
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
