"""Photos whose class a person has corrected on the page: kept beside the model as `identify` keeps
its results, so that the next review asks about them."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from clew.base.errors import QueueFullError
from clew.base.urls import resolved
from clew.patterns.identification.recognize import Recognition
from clew.patterns.identification.results import (
    IDENTIFIED_FILE,
    IDENTIFIED_FOLDER,
    Identified,
    IdentifiedWriter,
    read_identified,
)
from clew.patterns.library.placing import check_class_name, only_one, safe_file_name
from clew.patterns.photos.opening import HEAD_BYTES, describe_format
from clew.patterns.review.session import find_label
from clew.storage.writing import disk_errors, replace_file, replacing

_SERVED = "served"
_DIGEST_BYTES = 8
_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif"}
_LOCK_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Correction:
    """A photo's class as a person gave it; `id` is the same for equal photos, `waiting` the number
    of photos that are kept."""

    id: str
    label: str
    waiting: int


class Corrections:
    """The corrected photos of a model or set, `most` at most. Every change is on disk when the
    method returns; other threads and servers may make some at the same time."""

    def __init__(self, home: Path, model: Path, classes: Sequence[str], *, most: int) -> None:
        self.folder = home / IDENTIFIED_FOLDER / _SERVED
        self._photos = self.folder / "photos"
        self._model, self._classes, self._most = model, tuple(classes), most
        self._turn = threading.Lock()

    def add(self, photo: bytes, found: Recognition, label: str) -> Correction:
        """Keep a photo; the last correction of the same photo counts. Raises InputError for a label
        that no class can have, QueueFullError, or StoreError if it cannot be saved."""
        label = find_label(self._classes, label) or check_class_name(label)
        number = hashlib.blake2b(photo, digest_size=_DIGEST_BYTES).hexdigest()
        with self._changing() as photos:
            known = photos.pop(number, None)
            if known is None and len(photos) >= self._most:
                raise QueueFullError("too many photos wait for review", waiting=len(photos))
            path = self._photos / _file_name(str(found.path), number, photo)
            if known is not None and known.path.is_file():
                path = known.path
            else:
                replace_file(path, photo)
            photos[number] = Identified(
                name=PurePath(found.path).name,
                path=path.absolute(),
                best=found.best,
                doubtful=True,
                unknown=found.is_unknown,
                typicality=found.typicality,
                correction=label,
            )
            return Correction(id=number, label=label, waiting=len(photos))

    def remove(self, number: str) -> int | None:
        """Take a correction back; returns how many are left, None if there is no such one."""
        with self._changing() as photos:
            known = photos.pop(number, None)
            left = len(photos)
        if known is None:
            return None
        # Only ever a file of this folder, whatever somebody has written into the list.
        (self._photos / known.path.name).unlink(missing_ok=True)
        return left

    def count(self) -> int:
        """How many are kept, reviewed ones included."""
        return len(self._read())

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Identified]]:
        """The photos by their number, which are written back unless an error is raised."""
        with self._turn, disk_errors(self.folder):
            self._photos.mkdir(parents=True, exist_ok=True)
            message = f'another server holds "{self.folder}"'
            with only_one(self.folder / ".lock", message, wait_seconds=_LOCK_SECONDS):
                photos = self._read()
                yield photos
                self._write(photos)

    def _read(self) -> dict[str, Identified]:
        file = self.folder / IDENTIFIED_FILE
        photos = read_identified(file).photos if file.exists() else ()
        return {_number(photo.path): photo for photo in photos if photo.path.exists()}

    def _write(self, photos: dict[str, Identified]) -> None:
        settings = {
            "folder": str(self._photos.resolve()),
            "model": str(resolved(self._model)),
            "classes": list(self._classes),
        }
        with replacing(self.folder / IDENTIFIED_FILE) as file:
            writer = IdentifiedWriter(file, settings)
            for photo in photos.values():
                writer.add(photo)
            writer.end({"photos": len(photos), "doubtful": len(photos)})


def _file_name(name: str, number: str, photo: bytes) -> str:
    """The photo's own name, with its number, by which it is found again, and the extension of what
    it really is."""
    found = describe_format(photo[:HEAD_BYTES])
    assert found is not None, "it was decoded before"
    suffix = _SUFFIXES.get(found.name, f".{found.name.lower()}")
    return f"{PurePath(safe_file_name(PurePath(name).name)).stem}-{number}{suffix}"


def _number(path: Path) -> str:
    return path.stem.rpartition("-")[2]
