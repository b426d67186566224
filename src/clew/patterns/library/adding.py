"""Adds single photos to the classes of a set; every picture once."""

import hashlib
import logging
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from clew.errors import InputError, StoreLockedError
from clew.patterns.library.journal import Journal, Picture
from clew.patterns.library.names import check_class_name, check_photo_name
from clew.patterns.library.placing import put_photo
from clew.patterns.photos.decode import PhotoError, read_square

if TYPE_CHECKING:
    from clew.patterns.library.pattern_set import PatternSet

logger = logging.getLogger(__name__)

# Large enough that two photos of one thing differ, small enough for quick decoding of JPEGs.
_SIDE = 128
_WAIT_SECONDS = 10.0


def add_photo(
    pattern_set: "PatternSet", journal: Journal, path: Path, label: str, *, move: bool = False
) -> Path:
    """See PatternSet.add."""
    label = check_class_name(label)
    check_photo_name(path)
    try:
        digest = digest_picture(path)
    except PhotoError as error:
        raise InputError(f'"{path}" cannot be added to "{label}": {error.reason}') from None
    with set_lock(pattern_set, wait_seconds=_WAIT_SECONDS):
        journal.read_on()
        same = journal.find(digest)
        if same is None:
            target = put_photo(path, class_folder(pattern_set.photos, label), move=move)
            journal.note(describe(pattern_set.photos, target, digest))
            return target
    if same.label != label:
        raise InputError(
            f'"{path}" cannot be added to "{label}": the same picture lies in "{same.label}", as '
            f'"{pattern_set.photos / same.photo}". Take it away there first.'
        )
    logger.info('"%s" is there already, as %s', path, same.photo)
    return pattern_set.photos / same.photo


def describe(photos: Path, path: Path, digest: str) -> Picture:
    found = path.stat()
    return Picture(
        photo=path.relative_to(photos).as_posix(),
        bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
        digest=digest,
    )


def class_folder(photos: Path, label: str) -> Path:
    """The folder of a class; one whose accents are spelt in the other way is the same class."""
    folder = photos / label
    if folder.is_dir() or not photos.is_dir():
        return folder
    alike = (one for one in photos.iterdir() if unicodedata.normalize("NFC", one.name) == label)
    return next(alike, folder)


def digest_picture(path: Path) -> str:
    """The same for the same picture, whatever the file is like. Raises PhotoError."""
    return hashlib.blake2b(read_square(path, _SIDE).tobytes(), digest_size=16).hexdigest()


@contextmanager
def set_lock(pattern_set: "PatternSet", *, wait_seconds: float = 0.0) -> Iterator[None]:
    """The right to add photos; raises StoreLockedError when another process has it."""
    lock = filelock.FileLock(pattern_set.folder / ".import.lock", timeout=wait_seconds)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StoreLockedError(
            f'another process is adding photos to the set "{pattern_set.name}": wait until it has '
            f"ended, then give the same command again."
        ) from None
    try:
        yield
    finally:
        lock.release()
