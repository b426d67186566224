"""Copies of the photos, one folder per class. Existing files are never overwritten."""

import filecmp
import itertools
import os
import re
import secrets
import shutil
from pathlib import Path

from clew.base.errors import Call, InputError
from clew.patterns.identification.results import Identified
from clew.patterns.library.folders import SET_FILE, library_settings
from clew.storage.disk import disk_errors
from clew.storage.writing import create_file

DOUBTFUL_FOLDER, UNKNOWN_FOLDER = "_doubtful", "_unknown"
# What some file systems do not allow in a name, and what would lead out of the folder.
_UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]')
_MAX_STEM = 200  # bytes: a number must still fit into a name


class ClassFolders:
    """Sorts photos into `folder`; counts what was copied, what already existed, and what was
    missing or unreadable by then. Raises InputError for an unusable folder."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError("it is a file. Give a folder.", setting="copy_to", value=folder)
        _refuse_photos_of_a_set(folder)
        self.folder = folder
        self.copied = self.already_there = self.lost = 0

    @property
    def doubtful(self) -> Path:
        """Where doubtful photos go."""
        return self.folder / DOUBTFUL_FOLDER

    @property
    def unknown(self) -> Path:
        """Where unknown photos go."""
        return self.folder / UNKNOWN_FOLDER

    def add(self, photo: Identified) -> None:
        """Copy the photo into the folder of its class, keeping its modification time. Unreadable
        photos are not copied."""
        if photo.fault is not None:
            return
        name = DOUBTFUL_FOLDER if photo.doubtful else class_folder(photo.best[0][0])
        name = UNKNOWN_FOLDER if photo.unknown else name
        if not os.access(photo.path, os.R_OK):
            self.lost += 1
            return
        with disk_errors(self.folder):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._copy(photo.path, self.folder / name)

    def _copy(self, source: Path, folder: Path) -> None:
        for number in itertools.count(1):
            target = folder / _numbered(source, number)
            if not target.exists():
                if _copy_new(source, target):
                    self.copied += 1
                    return
            elif filecmp.cmp(source, target, shallow=False):
                self.already_there += 1
                return


def _refuse_photos_of_a_set(folder: Path) -> None:
    """Raise InputError for the photos folder of a set: there, a prediction would be trained on as
    if a person had confirmed it."""
    whole = folder.resolve()
    for place in (whole, *whole.parents):
        if (place.parent / SET_FILE).is_file() and place.name == "photos":
            raise InputError(
                f'it contains the photos of the set "{place.parent.name}", but predictions may be '
                "wrong. Choose another folder, or add photos to the set with ",
                _call_to_review(place.parent),
                ".",
                setting="copy_to",
                value=folder,
            )


def _call_to_review(folder: Path) -> Call:
    settings = {"every": True, **library_settings(folder.parent)}
    return Call("clew.patterns.review_photos", (folder.name,), settings)


def class_folder(label: str) -> str:
    """A class as a folder name that cannot lead out of its parent folder, whatever the class is
    called."""
    name = _UNSAFE.sub("_", label).strip(" .") or "_"
    return f"{name}_" if name in (DOUBTFUL_FOLDER, UNKNOWN_FOLDER) else name


def _numbered(source: Path, number: int) -> str:
    if number == 1:
        return source.name
    stem = os.fsdecode(os.fsencode(source.stem)[:_MAX_STEM])
    return f"{stem}-{number}{source.suffix}"


def _copy_new(source: Path, target: Path) -> bool:
    """A complete copy or none; False if another process has created `target` in the meantime."""
    part = target.with_name(f".clew-{secrets.token_hex(4)}.tmp")
    try:
        with source.open("rb") as reading, create_file(part) as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
        shutil.copystat(source, part)
        return _name_exclusively(part, target)
    finally:
        part.unlink(missing_ok=True)


def _name_exclusively(part: Path, target: Path) -> bool:
    try:
        os.link(part, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            return False
        part.replace(target)
    return True
