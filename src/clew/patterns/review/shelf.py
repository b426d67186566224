"""The folder with a folder a class: photos go in, and come out again when an answer is undone."""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clew.errors import InputError
from clew.patterns.library.names import check_photo_name
from clew.patterns.library.placing import put_photo, remove_parts
from clew.patterns.photos.photo import class_name, natural_order
from clew.patterns.review.notes import digest_file

_PASSED_OVER = {"__macosx"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A photo in its class: its path below the folder, and whether it was put there just now."""

    name: str
    is_new: bool


class Shelf:
    """Knows every file below the folder by its length, so that no photo is put in twice.

    `put` copies a photo into a class, where the folder belongs to a set that keeps a journal.
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
        """Copy a photo into its class; one that is there already is left as it is.

        Raises InputError when the same photo lies in another class, DiskFullError.
        """
        there = self._find(path)
        for other in there:
            if self._label_of(other) == label:
                return Placed(name=self._name(other), is_new=False)
        if there:
            raise InputError(
                f'this photo is in the class "{self._label_of(there[0])}" already: '
                f'"{there[0]}". Take it away there first, choose that class, or skip.'
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
        """Remove the original, once it is sure that the class has it. False: it stays, because it
        is the one in the class itself, was changed, or may not be removed."""
        copy = self.folder / placed
        try:
            if copy.samefile(path) or digest_file(copy) != digest or digest_file(path) != digest:
                return False
            path.unlink()
        except OSError:
            return False
        return True

    def give_back(self, placed: str, path: Path, digest: str) -> None:
        """See that the photo is where it was. Raises InputError if that is another file now."""
        if os.path.lexists(path):
            if path.is_file() and digest_file(path) == digest:
                return
            raise InputError(
                f'"{path}" is another file by now: the photo cannot be put back there. It stays in '
                f'"{self.folder / placed}"; move it yourself.'
            )
        self._refuse_changed(self.folder / placed, digest)
        copy = put_photo(self.folder / placed, path.parent)
        if copy != path:
            copy.rename(path)

    def remove(self, placed: str, digest: str) -> None:
        """Take a photo out of its class that a review had put in, and nothing else."""
        path = self.folder / placed
        if not path.exists():
            return
        self._refuse_changed(path, digest)
        self._by_bytes[path.stat().st_size].remove(path)
        path.unlink()
        if path.parent in self._made and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def _refuse_changed(self, path: Path, digest: str) -> None:
        if not path.is_file():
            raise InputError(f'"{path}" is not there any more: it cannot be put back.')
        if digest_file(path) != digest:
            raise InputError(
                f'"{path}" was changed since: it is left as it is. Delete it yourself if it is not '
                f"wanted there."
            )

    def _copy(self, path: Path, label: str) -> Path:
        check_photo_name(path)
        return put_photo(path, self._class_folders.get(label, self.folder / label))

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
