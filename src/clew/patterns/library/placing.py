"""Names that may become folders and files, and photos put there: atomically, under a free name,
never over another file."""

import errno
import itertools
import logging
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath

import filelock
import psutil

from clew.base.errors import InputError, StoreLockedError
from clew.base.texts import for_terminal
from clew.patterns.photos.photo import SUFFIXES
from clew.storage.writing import create_file, disk_errors, lock_file, sync_folder

# File systems allow 255 bytes; a number and a temporary suffix must still fit.
_MAX_BYTES = 180
# Control characters, separators, lone surrogates, and characters that reorder or hide text.
_BAD = re.compile(
    r"[\x00-\x1f\x7f-\x9f/\\\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_SHOWN_CHARACTERS = 60


def check_set_name(name: str) -> str:
    """The name as used for the folder; raises InputError for an invalid one."""
    return _check(name, "name of a set")


def check_class_name(label: str) -> str:
    """The class as used for its folder; raises InputError for an invalid one."""
    return _check(label, "name of a class")


def lies_inside(name: str) -> bool:
    """Whether a path that somebody else may have written leads to a file below the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def check_photo_name(path: Path) -> None:
    """Raises InputError for a file whose name does not look like a photo's."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f'"{path}" does not have a photo extension (.jpg, .png, ...): rename it first.'
        )


def safe_file_name(name: str) -> str:
    """A photo's own name, without characters that a file system may refuse; the extension stays."""
    path = PurePath(_BAD.sub("_", unicodedata.normalize("NFC", name)).lstrip(". ") or "photo")
    stem = path.stem.encode("utf-8")[:_MAX_BYTES].decode("utf-8", "ignore").rstrip(". ")
    return (stem or "photo") + path.suffix


def _check(text: str, what: str) -> str:
    name = unicodedata.normalize("NFC", text).strip()
    wrong = _what_is_wrong(name)
    if wrong is not None:
        raise InputError(
            f'"{_shown(text)}" cannot be the {what}: {wrong}. It is used as a folder name: use '
            "letters, digits, spaces, - and _."
        )
    return name


def _shown(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return for_terminal(short)


def _what_is_wrong(name: str) -> str | None:
    found = _BAD.search(name)
    if not name:
        return "it is empty"
    if found is not None:
        sign = found[0]
        return (
            f'it contains "{sign}"' if sign.isprintable() else "it contains an invisible character"
        )
    if name.startswith(".") or name.endswith("."):
        return "it starts or ends with a dot"
    if len(name.encode("utf-8")) > _MAX_BYTES:
        return f"it is {len(name):,} characters long"
    return None


logger = logging.getLogger(__name__)

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
# Hidden, so that nobody mistakes a half-written photo for a finished one.
_PART = ".clew-{}.part"
_COUNTER = itertools.count()


@contextmanager
def only_one(lock: Path, message: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock against other processes; raises StoreLockedError with `message`."""
    held = lock_file(lock, timeout_seconds=wait_seconds)
    try:
        held.acquire()
    except filelock.Timeout:
        raise StoreLockedError(message) from None
    try:
        yield
    finally:
        held.release()


def class_folder(photos: Path, label: str) -> Path:
    """The folder of a class; one whose accents are encoded the other way is the same class."""
    folder = photos / label
    if folder.is_dir() or not photos.is_dir():
        return folder
    alike = (one for one in photos.iterdir() if unicodedata.normalize("NFC", one.name) == label)
    return next(alike, folder)


def put_photo(source: Path, folder: Path, *, move: bool = False) -> Path:
    """Copies `source` into `folder`; with `move` the source is deleted once the copy is safe.

    Returns the copy's path. Raises DiskFullError; what was copied before stays.
    """
    target = name_copy(copy_beside(source, folder), source.name)
    sync_folder(folder)
    if move:
        remove_source(source)
    return target


def copy_beside(source: Path, folder: Path) -> Path:
    """Copies `source` into `folder` under a hidden name, synced to disk; returns that copy."""
    part = folder / _PART.format(f"{os.getpid()}-{next(_COUNTER)}")
    try:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _copy(source, part)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def name_copy(part: Path, name: str) -> Path:
    """Gives a hidden copy the photo's own name, or the next free one; returns its path."""
    try:
        with disk_errors(part.parent):
            return _take_free_name(part, safe_file_name(name))
    finally:
        part.unlink(missing_ok=True)


def remove_parts(photos: Path) -> None:
    """Deletes the hidden copies of this process, and of those that were killed."""
    for part in photos.glob(f"*/{_PART.format('*')}"):
        process = re.search(r"\d+", part.name)
        if process and (int(process[0]) == os.getpid() or not psutil.pid_exists(int(process[0]))):
            part.unlink(missing_ok=True)


def _copy(source: Path, part: Path) -> None:
    with source.open("rb") as reading, create_file(part) as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        writing.flush()
        found = os.fstat(reading.fileno())
        # When a photo was taken is often known only from its file.
        os.utime(writing.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
        os.fsync(writing.fileno())


def _take_free_name(part: Path, name: str) -> Path:
    for target in candidate_names(part.parent, name):
        try:
            os.link(part, target)  # unlike a rename, it refuses a name that is taken
            return target
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        if not os.path.lexists(target):
            part.rename(target)
            return target
    raise AssertionError("numbers do not end")


def candidate_names(folder: Path, name: str) -> Iterator[Path]:
    """The name itself, then the same with a number; whether one is free is for the caller."""
    path = folder / name
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def remove_source(source: Path) -> None:
    """Deletes a photo that was copied; if that is not allowed, the log names it."""
    try:
        source.unlink()
    except OSError as error:
        logger.warning(
            '"%s" was copied, but the original cannot be deleted (%s): delete it yourself.',
            source,
            error.strerror,
        )
