"""Find photos in folders: one folder per class, with or without train, validation and test folders
above, or any photos at all. Nothing is opened; what is skipped is counted or named."""

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from clew.base.errors import InputError
from clew.base.texts import counted
from clew.patterns.photos.photo import SUFFIXES, Fault, Photo, class_name, natural_order

SPLIT_FOLDERS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
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


@dataclass(frozen=True, kw_only=True)
class PhotoFolder:
    """The photos below a folder, in natural order, and what was excluded."""

    root: Path  # absolute
    photos: tuple[Photo, ...]
    classes: tuple[str, ...]  # natural order; empty if no classes were looked for
    faults: tuple[Fault, ...]
    other_files: int  # not photos by their names
    split_folders: bool


def find_classes(root: Path, *, at_least: int = 2) -> PhotoFolder:
    """The photos of a folder with one folder per class, or with train and test folders that each
    have one folder per class.

    Photos in deeper folders belong to the class folder above them. Raises InputError when there is
    no such folder, no photo in a class folder, or fewer than `at_least` classes.
    """
    root, found = _search(root)
    depth = 1 if _has_split_folders(root, found) else 0
    photos = [_photo(root, name, depth) for name in found.photos]
    kept = tuple(photo for photo in photos if photo.label is not None)
    if not kept:
        raise InputError(
            f'the photos in "{root}" are not in class folders: put the photos of each class into '
            f"a folder of their own, such as {root}/cats/a.jpg."
        )
    folder = PhotoFolder(
        root=root,
        photos=kept,
        classes=sort_classes(photo.label for photo in kept if photo.label is not None),
        faults=(*found.faults, *_without_class(photos, depth), *_empty(found, kept, depth)),
        other_files=found.other_files,
        split_folders=depth == 1,
    )
    _refuse_few_classes(folder, at_least)
    return folder


def find_photos(root: Path) -> PhotoFolder:
    """All photos below a folder, or one file, without classes. Raises InputError if there are
    none."""
    path = Path(os.path.abspath(os.path.expanduser(root)))
    if os.path.isfile(path):
        found, folder = Found(photos=[path.name]), path.parent
    else:
        folder, found = _search(root)
    return PhotoFolder(
        root=folder,
        photos=tuple(
            Photo(path=folder / name, name=name, label=None, split=None) for name in found.photos
        ),
        classes=(),
        faults=tuple(found.faults),
        other_files=found.other_files,
        split_folders=False,
    )


def sort_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Each class once, "2" before "10"."""
    return tuple(sorted(set(labels), key=natural_order))


def check_folder(root: Path) -> Path:
    """The absolute path of a folder. Raises InputError if there is none."""
    path = Path(os.path.abspath(os.path.expanduser(root)))
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise InputError(
            f'the folder "{root}" cannot be found ({error.strerror}): check the path.'
        ) from None
    if not is_folder:
        raise InputError(f'"{root}" is a file: give the folder that contains the photos.')
    return path


def _search(root: Path) -> tuple[Path, Found]:
    """The absolute path, and what lies below it. Raises InputError if that is no photo."""
    path = check_folder(root)
    try:
        found = walk(path)
    except OSError as error:
        raise InputError(
            f'the folder "{path}" cannot be read ({error.strerror}): check its permissions.'
        ) from None
    if not found.photos:
        but = f", but {counted(found.other_files, 'other file')}" if found.other_files else ""
        excluded = [f' "{fault.name}" is excluded: {fault.reason}.' for fault in found.faults]
        raise InputError(
            f'the folder "{path}" contains no photos (JPG, PNG, BMP, GIF, TIFF or WebP '
            f"files){but}: check the path.{''.join(excluded[:1])}"
        )
    return path, found


def _has_split_folders(root: Path, found: Found) -> bool:
    """Whether the top folders are splits. Raises InputError if that is ambiguous."""
    places = [name.split("/")[:-1] for name in found.photos]
    tops = {folders[0] for folders in places if folders}
    named = {top for top in tops if top.casefold() in SPLIT_FOLDERS}
    with_classes = {folders[0] for folders in places if len(folders) > 1} & named
    if named == tops and _count_splits(named) > 1 and not with_classes:
        shown = " and ".join(f'"{top}"' for top in sorted(named))
        raise InputError(
            f'in "{root}" the folders {shown} contain no class folders: put the photos of each '
            f"class into a folder of their own, such as {root / max(named)}/cats/a.jpg."
        )
    if _count_splits(with_classes) == 1 and tops - named:
        split, other = min(with_classes), min(tops - named)
        raise InputError(
            f'in "{root}" the folder "{split}" looks like a split with class folders inside, '
            f'but the folder "{other}" beside it looks like a class: move "{other}" elsewhere, '
            f'or, if "{split}" is a class, rename it.'
        )
    return bool(with_classes)


def _count_splits(folders: set[str]) -> int:
    return len({SPLIT_FOLDERS[folder.casefold()] for folder in folders})


def _photo(root: Path, name: str, depth: int) -> Photo:
    folders = name.split("/")[:-1]
    split = SPLIT_FOLDERS.get(folders[0].casefold()) if depth and folders else None
    is_labeled = len(folders) > depth and (depth == 0 or split is not None)
    return Photo(
        path=root / name,
        name=name,
        label=class_name(folders[depth]) if is_labeled else None,
        split=split,
    )


def _without_class(photos: list[Photo], depth: int) -> list[Fault]:
    where = "class folder inside train, validation or test" if depth else "class folder"
    return [
        photo.fault("no class", f"it is not in a {where}")
        for photo in photos
        if photo.label is None
    ]


def _empty(found: Found, kept: tuple[Photo, ...], depth: int) -> list[Fault]:
    """Class folders without a photo."""
    used = {"/".join(photo.name.split("/")[: depth + 1]) for photo in kept}
    return [
        Fault(
            name=folder,
            label=class_name(folder.split("/")[depth]),
            kind="no photos",
            reason="the folder contains no photos",
        )
        for folder in found.folders
        if folder.count("/") == depth and folder not in used
    ]


def _refuse_few_classes(folder: PhotoFolder, at_least: int) -> None:
    if len(folder.classes) >= at_least:
        return
    raise InputError(
        f'"{folder.root}" contains only one class ("{folder.classes[0]}"), but a classifier '
        "requires at least two: add a folder with photos of another "
        f"class{_inner_classes(folder)}."
    )


def _inner_classes(folder: PhotoFolder) -> str:
    """Where the classes may really be: the given folder may be one level too high."""
    deeper = [photo.name.split("/")[:-1] for photo in folder.photos]
    above = os.path.commonprefix(deeper)
    inner = sort_classes(parts[len(above)] for parts in deeper if len(parts) > len(above))
    if folder.split_folders or len(inner) < 2:
        return ""
    shown = ", ".join(f'"{name}"' for name in inner[:3])
    more = ", ..." if len(inner) > 3 else ""
    return f', or, if {shown}{more} are the classes, give "{folder.root.joinpath(*above)}"'


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
            if not _holds(entry.is_dir):
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
    with suppress(UnicodeEncodeError):
        name.encode()
        return True
    shown = os.fsencode(_join(folder, name)).decode("utf-8", "backslashreplace")
    found.leave_out(shown, "name", "its name contains bytes that are not valid text: rename it")
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
    if identity in seen or (target and os.path.commonpath((target, inside)) == inside):
        found.leave_out(name, "link", "the link points to a folder that is already searched")
        return False
    seen.add(identity)
    return True


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
    elif _holds(entry.is_file):
        found.photos.append(name)
    else:
        link = "it is a link to a file that does not exist"
        reason = link if entry.is_symlink() else "it is not a regular file"
        found.leave_out(name, "unreadable", reason)


def _holds(check: Callable[[], bool]) -> bool:
    """Whether an entry of a folder is what `check` says; not if that cannot be found out."""
    try:
        return check()
    except OSError:
        return False
