"""Changes to a folder of photos: relabeled, moved to another split, removed. Nothing is deleted:
removed photos lie in a folder beside the data, and each change can be undone.

changes.jsonl gets a line before each step, so that the next session completes what a kill
interrupted.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import filelock

from clew.base.errors import InputError, StoreError, StoreLockedError
from clew.base.typed_json import Bounds, Count, read_as, wrong
from clew.patterns.library.placing import candidate_names, copy_beside, lies_inside, safe_file_name
from clew.patterns.photos.photo import SUFFIXES
from clew.patterns.review.notes import digest_file
from clew.storage.disk import disk_errors
from clew.storage.reading import open_regular, parse_json
from clew.storage.writing import append_to_file, lock_file, replace_file, sync_folder

CHANGES, REMOVED = "changes.jsonl", "removed"
Action = Literal["relabel", "move", "remove", "keep"]
# What is being done, or was: carried out, undone.
Step = Literal["start", "done", "undo", "undone"]
Text = Annotated[str, Bounds(most=4_096)]
# Called with a change whose step is "start", or "undo" if the photo went back.
Moved = Callable[["PhotoChange"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhotoChange:
    """A person's decision about a finding (`key`), and the photo's file before and after. `source`
    is a path in the folder of photos; `target` too, or in the folder of removed ones. `link` is
    where a symbolic link pointed."""

    number: Count
    action: Action
    key: tuple[Text, ...]
    step: Step
    source: Text
    target: Text | None = None
    bytes: Count = 0
    modified_ns: int = 0
    link: Text | None = None
    made: Text = ""


class Changes:
    """The changes to the photos in `data`, in order, kept in `folder`. `moved` is told each photo
    that is at another path now, if necessary by the session after a kill. Use `open_changes`."""

    def __init__(self, data: Path, folder: Path, moved: Moved = lambda _: None) -> None:
        self.data, self.folder, self._moved = data, folder, moved
        self._path = folder / CHANGES
        self._by_number, whole_bytes = _read(self._path)
        self._cut(whole_bytes)
        for change in self.started():
            self._finish(change)

    def __iter__(self) -> Iterator[PhotoChange]:
        """Those that hold: carried out, not undone."""
        return (change for change in self._by_number.values() if change.step == "done")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def started(self) -> list[PhotoChange]:
        """Those that a kill interrupted."""
        return [one for one in self._by_number.values() if one.step in ("start", "undo")]

    @property
    def removed(self) -> Path:
        """The folder of removed photos."""
        return self.folder / REMOVED

    def keep(self, name: str, key: tuple[str, ...]) -> PhotoChange:
        """Note that a photo stays as it is."""
        return self._note(self._new("keep", name, key), step="done")

    def remove(self, name: str, key: tuple[str, ...]) -> PhotoChange:
        """Move a photo into the folder of removed ones. Raises InputError if it is missing."""
        return self._carry_out(self._new("remove", name, key), self.removed / Path(name).parent)

    def put_into(
        self, name: str, folder: str, key: tuple[str, ...], *, action: Action = "relabel"
    ) -> PhotoChange:
        """Move a photo into another folder of the data. Raises InputError if it is missing."""
        if not lies_inside(folder):
            raise InputError(f'"{folder}" is not a folder of "{self.data}".')
        return self._carry_out(self._new(action, name, key), self.data / folder)

    def undo(self) -> PhotoChange | None:
        """Undo the latest change that holds, and return it; None if there is none. Raises
        InputError if the photo cannot be put back."""
        last = max(self, key=lambda change: change.number, default=None)
        if last is None:
            return None
        if last.target is not None:
            self._check_undo(last)
            last = self._note(last, step="undo")
            self._move_back(last)
            self._moved(last)
        return self._note(last, step="undone")

    def place_of(self, change: PhotoChange) -> Path | None:
        """Where the photo went; None if it stayed."""
        if change.target is None:
            return None
        return (self.removed if change.action == "remove" else self.data) / change.target

    def _new(self, action: Action, name: str, key: tuple[str, ...]) -> PhotoChange:
        if not lies_inside(name) or Path(name).suffix.lower() not in SUFFIXES:
            raise InputError(f'"{name}" is not a photo of "{self.data}".')
        path = self.data / name
        try:
            found = path.stat()
            link = os.readlink(path) if path.is_symlink() else None
        except OSError as error:
            raise InputError(
                f'the photo "{path}" can no longer be read ({error.strerror}): look for problems '
                "again."
            ) from None
        return PhotoChange(
            number=max(self._by_number, default=0) + 1,
            action=action,
            key=key,
            step="start",
            source=name,
            bytes=found.st_size,
            modified_ns=found.st_mtime_ns,
            link=link,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _carry_out(self, change: PhotoChange, folder: Path) -> PhotoChange:
        root = self.removed if change.action == "remove" else self.data
        path = self.data / change.source
        if folder == path.parent:
            raise InputError(f'the photo "{path}" is already there.')
        with disk_errors(self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        free = next(
            one for one in candidate_names(folder, safe_file_name(path.name)) if _is_free(one)
        )
        change = self._note(replace(change, target=free.relative_to(root).as_posix()), step="start")
        try:
            _move(path, free, link=None if change.link is None else _absolute(path, change.link))
        except OSError:
            self._note(change, step="undone")
            raise
        self._moved(change)
        return self._note(change, step="done")

    def _check_undo(self, change: PhotoChange) -> None:
        now, before = self.place_of(change), self.data / change.source
        assert now is not None
        if not os.path.lexists(now):
            raise InputError(f'"{now}" no longer exists: it cannot be put back.')
        if os.path.lexists(before):
            raise InputError(
                f'another file is at "{before}" now: move it away to put the photo back.'
            )

    def _move_back(self, change: PhotoChange) -> None:
        now, before = self.place_of(change), self.data / change.source
        assert now is not None
        with disk_errors(self.data):
            before.parent.mkdir(parents=True, exist_ok=True)
        try:
            _move(now, before, link=change.link)
        except OSError:
            self._note(change, step="done")
            raise
        if change.action == "remove":
            _remove_empty(now.parent, self.removed)

    def _finish(self, change: PhotoChange) -> None:
        """Complete an interrupted change, or, if nothing was done yet, forget it."""
        now, before = self.place_of(change), self.data / change.source
        if change.step == "undo":
            now, before = before, now or before
        arrived = now is not None and os.path.lexists(now)
        if arrived and now is not None and os.path.lexists(before) and _are_one(before, now):
            before.unlink()
        elif arrived and os.path.lexists(before):
            arrived = False  # both are there and differ: the photo never left
        if arrived:
            self._moved(change)
        ends: dict[str, tuple[Step, Step]] = {
            "start": ("done", "undone"),
            "undo": ("undone", "done"),
        }
        self._note(change, step=ends[change.step][0 if arrived else 1])

    def _cut(self, whole_bytes: int) -> None:
        """Remove a line that a kill cut off, before its step was taken."""
        if self._path.exists() and self._path.stat().st_size > whole_bytes:
            with open_regular(self._path) as file:
                whole = file.read(whole_bytes)
            replace_file(self._path, whole)

    def _note(self, change: PhotoChange, *, step: Step) -> PhotoChange:
        """Write the change as it is now; it takes effect once it is on disk."""
        change = replace(change, step=step)
        line = json.dumps(asdict(change)).encode() + b"\n"
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with append_to_file(self._path) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self._by_number[change.number] = change
        return change


@contextmanager
def open_changes(data: Path, folder: Path, moved: Moved = lambda _: None) -> Iterator[Changes]:
    """The changes to the photos in `data`, locked against other processes. Raises
    StoreLockedError, and StoreError for a damaged journal."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock_file(folder / ".clean.lock", timeout_seconds=0):
            yield Changes(data, folder, moved)
    except filelock.Timeout:
        raise StoreLockedError(
            f'another session is cleaning "{data}": finish that one first ("Finish" on its page).'
        ) from None


def decided_keys(folder: Path) -> set[tuple[str, ...]]:
    """The findings that a person has decided about, while a session may be running. Raises
    StoreError for a damaged journal."""
    changes, _ = _read(folder / CHANGES)
    return {change.key for change in changes.values() if change.step == "done"}


def _read(path: Path) -> tuple[dict[int, PhotoChange], int]:
    """The changes by number, and the length of the lines that are complete."""
    changes: dict[int, PhotoChange] = {}
    if not path.exists():
        return changes, 0
    with open_regular(path) as file:
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            change = read_as(PhotoChange, parse_json(line, encodable=False))
            _check(change)
        except ValueError as error:
            raise StoreError(
                f'line {number:,} of "{path}", the journal of changes, cannot be read ({error}): '
                "restore the file from a backup, or rename it to start over."
            ) from None
        changes[change.number] = change
    return changes, len(whole)


def _check(change: PhotoChange) -> None:
    """Raises ValueError for a change that nobody has made: undoing it would move any file."""
    for name in (change.source, change.target):
        if name is not None and (
            not lies_inside(name) or Path(name).suffix.lower() not in SUFFIXES
        ):
            raise wrong("name", name)


def _is_free(path: Path) -> bool:
    return not os.path.lexists(path)


def _absolute(path: Path, link: str) -> str:
    return os.path.normpath(path.parent / link)


def _move(source: Path, target: Path, *, link: str | None) -> None:
    """Give a photo another path. At every moment it is at one of the two, and no file is ever
    overwritten."""
    if link is not None:
        os.symlink(link, target)
    else:
        _link_or_copy(source, target)
    sync_folder(target.parent)
    source.unlink()
    sync_folder(source.parent)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # unlike a rename, it refuses a name that is taken
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        part = copy_beside(source, target.parent)
        try:
            if not _is_free(target):
                raise FileExistsError(
                    errno.EEXIST, os.strerror(errno.EEXIST), str(target)
                ) from None
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)


def _are_one(one: Path, other: Path) -> bool:
    """Whether two paths hold the same photo: the same file, or a copy of it."""
    try:
        return one.samefile(other) or digest_file(one) == digest_file(other)
    except OSError:
        return False


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top.parent and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
