"""Things that are built once and kept in the user's cache."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import filelock

from clew.base.errors import DiskFullError, StoppedError, StoreError, StoreLockedError
from clew.base.progress import Note, Reporter, ignore_event
from clew.storage.writing import lock_file, sync_folder

Kept = TypeVar("Kept")
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Shelf(Generic[Kept]):
    """A place for one thing that takes minutes to build: the first process that needs it builds it,
    the others wait. What a killed process left is resumed; a damaged folder is built again.
    `load` reads the finished folder and raises StoreError if it is damaged."""

    root: Path
    name: str
    load: Callable[[Path], Kept]
    reporter: Reporter

    def get(self, build: Callable[[Path], Path], should_stop: Callable[[], bool]) -> Kept:
        """What is kept, after building it if necessary. `build` gets a folder to work in and
        returns the one in it to keep; everything else is removed. Raises StoppedError if asked to
        stop while another process builds."""
        if (found := self._load(ignore_event)) is not None:
            return found
        self.root.mkdir(parents=True, exist_ok=True)
        with _holding(self.root / f".{self.name}.lock", self.reporter, should_stop):
            if (found := self._load(self.reporter)) is None:
                self._keep(self._build(build))
                found = self.load(self.folder)
        return found

    @property
    def folder(self) -> Path:
        return self.root / self.name

    def _load(self, reporter: Reporter) -> Kept | None:
        if not self.folder.exists():
            return None
        try:
            return self.load(self.folder)
        except StoreError as error:
            reporter(Note(f"{self.folder} cannot be used and is built again ({error})"))
            return None

    def _build(self, build: Callable[[Path], Path]) -> Path:
        work = self._work
        is_resumed = work.exists()
        try:
            return build(work)
        except (DiskFullError, StoreLockedError):
            raise
        except StoreError as error:
            if not is_resumed:
                raise
            self.reporter(Note(f"an interrupted run cannot be resumed and is repeated ({error})"))
            shutil.rmtree(work)
            return build(work)

    def _keep(self, made: Path) -> None:
        """Move it into place, and remove everything that it was made from."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.replace(made, self.folder)
        sync_folder(self.root)
        shutil.rmtree(self._work)

    @property
    def _work(self) -> Path:
        return self.root / f".{self.name}.part"


@contextmanager
def _holding(path: Path, reporter: Reporter, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Holds a lock. While another process has it, says so once and can be stopped."""
    lock, is_told = lock_file(path, timeout_seconds=_POLL_SECONDS), False
    while True:
        try:
            lock.acquire()
            break
        except filelock.Timeout:
            if not is_told:
                reporter(Note("another process is already building it: waiting"))
            is_told = True
        if should_stop():
            raise StoppedError("stopped while another process was building it.")
    try:
        yield
    finally:
        lock.release()
