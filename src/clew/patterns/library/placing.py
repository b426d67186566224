"""Puts a photo into a folder: atomically, under a free name, never over another file."""

import errno
import itertools
import logging
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import psutil

from clew.patterns.library.names import safe_file_name
from clew.storage.disk import disk_errors
from clew.storage.writing import create_file, sync_folder

logger = logging.getLogger(__name__)

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
# Hidden, so that nobody mistakes a half-written photo for a finished one.
_PART = ".clew-{}.part"
_COUNTER = itertools.count()


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
