"""Walk through a folder: which files look like photos, and what is skipped. Links are followed, but
never in circles."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from clew.patterns.photos.photo import SUFFIXES, Fault, natural_order

# Files that operating systems put next to photos, which are skipped; so are all names that start
# with a dot.
_PASSED_OVER = {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "ehthumbs.db"}
# A folder that holds all of one of these was written by clew, images included.
_OWN_FILES = (
    {"last.safetensors"},
    {"best.safetensors"},
    {"identified.json"},
    {"findings.json", "findings.csv"},
    {"set.json", "photos"},
)
# Image formats that are not supported: they must be reported, not silently skipped.
_OTHER_PICTURES = frozenset(
    {".heic", ".heif", ".avif", ".jp2", ".jxl", ".psd", ".svg", ".ico", ".raw", ".dng"}
    | {".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"}
)


@dataclass(kw_only=True)
class Found:
    """What lies below a folder; names are paths inside it, with "/"."""

    photos: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    other_files: int = 0

    def leave_out(self, name: str, kind: str, reason: str) -> None:
        self.faults.append(Fault(name=name, label=None, kind=kind, reason=reason))


def walk(root: Path) -> Found:
    """Everything below `root`, folder by folder, in natural order. Raises OSError for `root`."""
    found = Found()
    seen = {_identity(root)}
    inside = os.path.realpath(root)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        below = []
        for entry in _list(root, folder, found):
            name = _join(folder, entry.name)
            if not _is_folder(entry):
                _take_file(entry, name, found)
            elif _may_enter(entry, name, inside, seen, found):
                below.append(name)
        waiting.extend(reversed(below))
    return found


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _list(root: Path, folder: str, found: Found) -> list[os.DirEntry[str]]:
    """The entries of a folder that count, in order."""
    try:
        entries = list(os.scandir(root / folder))
    except OSError as error:
        if not folder:
            raise
        found.leave_out(folder, "unreadable", f"the folder cannot be read ({error.strerror})")
        return []
    names = {entry.name for entry in entries}
    if folder and any(own <= names for own in _OWN_FILES):
        found.leave_out(folder, "results", "clew wrote this folder: it is not a class")
        return []
    if folder:
        found.folders.append(folder)
    entries.sort(key=lambda entry: natural_order(entry.name))
    return [entry for entry in entries if _counts(entry.name, folder, found)]


def _counts(name: str, folder: str, found: Found) -> bool:
    if name.startswith(".") or name.lower() in _PASSED_OVER:
        return False
    if _is_text(name):
        return True
    shown = os.fsencode(_join(folder, name)).decode("utf-8", "backslashreplace")
    found.leave_out(shown, "name", "its name contains bytes that are not valid text: rename it")
    return False


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _may_enter(
    entry: os.DirEntry[str], name: str, inside: str, seen: set[tuple[int, int]], found: Found
) -> bool:
    """Whether to descend into a folder: not if it was visited already, or is a link to a folder
    inside the root, which is found at its real place."""
    try:
        identity = _identity(entry.path)
        target = os.path.realpath(entry.path) if entry.is_symlink() else None
    except OSError as error:
        found.leave_out(name, "unreadable", f"the folder cannot be read ({error.strerror})")
        return False
    if identity in seen or (target is not None and _lies_in(target, inside)):
        found.leave_out(name, "link", "the link points to a folder that is already searched")
        return False
    seen.add(identity)
    return True


def _lies_in(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _identity(path: str | Path) -> tuple[int, int]:
    state = os.stat(path)
    return state.st_dev, state.st_ino


def _take_file(entry: os.DirEntry[str], name: str, found: Found) -> None:
    suffix = os.path.splitext(entry.name)[1].lower()
    if suffix in _OTHER_PICTURES:
        kind = suffix[1:].upper()
        found.leave_out(name, "format", f"{kind} images are not supported: save it as JPEG or PNG")
    elif suffix not in SUFFIXES:
        found.other_files += 1
    elif _is_file(entry):
        found.photos.append(name)
    else:
        missing = entry.is_symlink()
        reason = (
            "it is a link to a file that does not exist" if missing else "it is not a regular file"
        )
        found.leave_out(name, "unreadable", reason)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False
