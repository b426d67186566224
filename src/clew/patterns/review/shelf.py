"""Carries out decisions: photos go into the folder with one folder per class, and come out again
when an answer is undone. Each decision is noted first, so that the next review completes what a
kill interrupted."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clew.base.errors import ClewError, InputError
from clew.patterns.library.placing import (
    check_class_name,
    check_photo_name,
    put_photo,
    remove_parts,
)
from clew.patterns.photos.photo import class_name, natural_order
from clew.patterns.review.notes import Decision, Notes, digest_file

_PASSED_OVER = {"__macosx"}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A photo in its class: its path below the folder, and whether it was just put there."""

    name: str
    is_new: bool


class Shelf:
    """The folder with one folder per class. It knows every file in it by length, so that no photo
    is added twice.

    `put` copies a photo into a class, if the folder belongs to a set that keeps a journal.
    """

    def __init__(self, folder: Path, put: Callable[[Path, str], Path] | None = None) -> None:
        self.folder = folder
        self._put = put or self._copy
        self._class_folders: dict[str, Path] = {}
        self._by_bytes: dict[int, list[Path]] = defaultdict(list)
        self._made: set[Path] = set()
        remove_parts(folder)
        for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
            if entry.is_dir() and not _is_passed_over(entry.name):
                self._class_folders.setdefault(class_name(entry.name), entry)
                self._look_into(entry)

    def classes(self) -> list[str]:
        return sorted(self._class_folders, key=natural_order)

    def add(self, path: Path, label: str) -> Placed:
        """Copies a photo into its class; an existing one is left alone.

        Raises InputError when the same photo is in another class, DiskFullError.
        """
        there = self._find(path)
        for other in there:
            if self._label_of(other) == label:
                return Placed(name=self._name(other), is_new=False)
        if there:
            raise InputError(
                f'this photo is already in the class "{self._label_of(there[0])}": '
                f'"{there[0]}". Remove it there first, choose that class, or skip.'
            )
        before = set(self.folder.iterdir())
        placed = self._put(path, label)
        self._made |= {placed.parent} - before
        alike = self._by_bytes[placed.stat().st_size]
        is_new = placed not in alike
        if is_new:
            alike.append(placed)
        return Placed(name=self._name(placed), is_new=is_new)

    def take_away(self, path: Path, placed: str, digest: str) -> bool:
        """Deletes the original, once the class certainly has it.

        False: it stays, because it is the one in the class itself, was changed, or cannot be
        deleted.
        """
        copy = self.folder / placed
        try:
            if copy.samefile(path) or digest_file(copy) != digest or digest_file(path) != digest:
                return False
            path.unlink()
        except OSError:
            return False
        return True

    def give_back(self, placed: str, path: Path, digest: str) -> None:
        """Restore the original photo. Raises InputError if another file is in its place."""
        if os.path.lexists(path):
            if path.is_file() and digest_file(path) == digest:
                return
            raise InputError(
                f'"{path}" is now a different file: the photo cannot be restored there. It stays '
                f'in "{self.folder / placed}"; move it yourself.'
            )
        self._refuse_changed(self.folder / placed, digest)
        copy = put_photo(self.folder / placed, path.parent)
        if copy != path:
            copy.rename(path)

    def remove(self, placed: str, digest: str) -> None:
        """Remove from its class a photo that a review put there; any other file is left alone."""
        path = self.folder / placed
        if not path.exists():
            return
        self._refuse_changed(path, digest)
        alike = self._by_bytes[path.stat().st_size]
        alike[:] = [one for one in alike if one != path]
        path.unlink()
        if path.parent in self._made and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def _refuse_changed(self, path: Path, digest: str) -> None:
        if not path.is_file():
            raise InputError(f'"{path}" no longer exists: it cannot be restored.')
        if digest_file(path) != digest:
            raise InputError(
                f'"{path}" has changed since then, so it is not removed. Delete it yourself if it '
                "does not belong there."
            )

    def _copy(self, path: Path, label: str) -> Path:
        check_photo_name(path)
        # A prediction may come from a file that somebody else has written.
        folder = self._class_folders.get(label) or self.folder / check_class_name(label)
        return put_photo(path, folder)

    def _look_into(self, folder: Path) -> None:
        for root, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not _is_passed_over(name)]
            for name in names:
                path = Path(root, name)
                if not _is_passed_over(name) and path.is_file():
                    self._by_bytes[path.stat().st_size].append(path)

    def _find(self, path: Path) -> list[Path]:
        alike = [one for one in self._by_bytes.get(path.stat().st_size, ()) if one.is_file()]
        if not alike:
            return []
        digest = digest_file(path)
        return [one for one in alike if digest_file(one) == digest]

    def _label_of(self, path: Path) -> str:
        return class_name(path.relative_to(self.folder).parts[0])

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _PASSED_OVER


class Carrier:
    """Carries out decisions. Every step can be repeated: what is already done is detected and left
    alone."""

    def __init__(self, shelf: Shelf, notes: Notes) -> None:
        self.shelf, self.notes = shelf, notes

    def carry_out(self, decision: Decision) -> Decision:
        """Puts the photo into its class, and deletes the original if it moves.

        Raises InputError, DiskFullError or OSError; then nothing was done.
        """
        if decision.step == "place" and decision.label is not None:
            decision = self._place(decision, decision.label)
        if decision.step == "take away":
            path = Path(decision.path)
            moved = self.shelf.take_away(path, str(decision.placed), decision.digest)
            decision = self.notes.change(decision, step="done", moves=moved)
        return decision

    def _place(self, decision: Decision, label: str) -> Decision:
        step = "take away" if decision.moves else "done"
        placed = None
        try:
            placed = self.shelf.add(Path(decision.path), label)
            return self.notes.change(decision, placed=placed.name, is_new=placed.is_new, step=step)
        except (ClewError, OSError):
            if placed is not None and placed.is_new:
                self.shelf.remove(placed.name, decision.digest)
            self.notes.drop(decision)
            raise

    def take_back(self, decision: Decision) -> None:
        """Undo a decision. Raises InputError, and keeps the decision, if another file is in the
        way."""
        if decision.placed is not None and (decision.moves or decision.is_new):
            undoing = self.notes.change(decision, step="take back")
            try:
                self._empty(undoing, decision.placed)
            except (ClewError, OSError):
                self.notes.change(undoing, step="done")
                raise
            decision = undoing
        self.notes.drop(decision)

    def finish(self) -> int:
        """Completes what earlier reviews had noted when they were killed; returns their number."""
        started = [decision for decision in self.notes.decisions if decision.step != "done"]
        for decision in started:
            try:
                self._finish(decision)
            except (ClewError, OSError) as error:
                logger.warning(
                    "%s: an interrupted decision cannot be completed: %s", decision.name, error
                )
        return len(started)

    def _empty(self, decision: Decision, placed: str) -> None:
        """Restore the original, even if it was deleted in the meantime, and only then delete the
        copy."""
        self.shelf.give_back(placed, Path(decision.path), decision.digest)
        if decision.is_new:
            self.shelf.remove(placed, decision.digest)

    def _finish(self, decision: Decision) -> None:
        path = Path(decision.path)
        if decision.step == "take back":
            self.take_back(decision)
        elif path.is_file() and digest_file(path) == decision.digest:
            self.carry_out(decision)
        elif decision.step == "take away":
            self.notes.change(decision, step="done")
        else:
            self.notes.drop(decision)
