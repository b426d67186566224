"""Which files an import is about, and which class each belongs to."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.errors import InputError
from clew.patterns.library.commands import command_text
from clew.patterns.library.journal import Source
from clew.patterns.library.names import check_class_name, check_photo_name
from clew.patterns.library.pattern_set import SET_FILE, PatternSet
from clew.patterns.photos.find import PhotoFolder, find_classes, find_photos
from clew.patterns.photos.photo import class_name


@dataclass(frozen=True, kw_only=True)
class FoundSources:
    """The photos to look at, what is left out by its name or place, and how many files are no
    photos by their names."""

    sources: tuple[Source, ...]
    left_out: tuple[Source, ...]
    other_files: int


def find_sources(
    pattern_set: PatternSet, roots: Sequence[Path], label: str | None = None
) -> FoundSources:
    """The photos below all roots; `label` is the class of them all. Raises InputError before
    anything is done, for a root that cannot be used and for a class that cannot be a folder."""
    label = None if label is None else check_class_name(label)
    found: dict[tuple[str, str], Source] = {}
    left_out: list[Source] = []
    other_files = 0
    for root in roots:
        _refuse_the_set_itself(pattern_set, root)
        root = root / "photos" if (root / SET_FILE).is_file() else root  # another set
        own_label, folder = _find(pattern_set, root, label, is_alone=len(roots) == 1)
        for photo in folder.photos:
            one = _describe(photo.path, own_label or check_class_name(str(photo.label)))
            found.setdefault((one.source, one.label), one)
        left_out += [
            _left_out(folder.root / fault.name, fault.label or "", fault.kind, fault.reason)
            for fault in folder.faults
        ]
        other_files += folder.other_files
    return FoundSources(
        sources=tuple(found.values()), left_out=tuple(left_out), other_files=other_files
    )


def _find(
    pattern_set: PatternSet, root: Path, label: str | None, *, is_alone: bool
) -> tuple[str | None, PhotoFolder]:
    """The photos below a root, and their class where it is one for all."""
    if label is None and root.is_file():
        raise InputError(f'"{root}" is a single file: say with --label which class it belongs to.')
    if root.is_file():
        check_photo_name(root)
    found = find_photos(root)
    if label is not None:
        return label, found
    if any("/" in photo.name for photo in found.photos):
        return None, find_classes(root, at_least=1)
    own = class_name(found.root.name)
    if is_alone:
        words = (pattern_set.name, root, "--label", own)
        again = command_text("import", *words, library=pattern_set.library)
        raise InputError(
            f'the photos in "{root}" lie in no class folders: if they are all of one class, say '
            f'which with "{again}"; else put each class into a folder of its own.'
        )
    return check_class_name(own), found  # several folders of photos: each is a class


def _refuse_the_set_itself(pattern_set: PatternSet, root: Path) -> None:
    own, other = pattern_set.folder.resolve(), root.resolve()
    if other.is_relative_to(own / "photos"):
        raise InputError(f'"{root}" lies in the set "{pattern_set.name}": it has these photos.')
    if own.is_relative_to(other):
        raise InputError(
            f'"{root}" holds the set "{pattern_set.name}" itself (in "{pattern_set.folder}"): give '
            f"the folder of the new photos only."
        )


def _describe(path: Path, label: str) -> Source:
    try:
        found = os.stat(path)
    except OSError as error:
        return _left_out(path, label, "unreadable", f"it cannot be read ({error.strerror})")
    return Source(source=str(path), label=label, bytes=found.st_size, modified_ns=found.st_mtime_ns)


def _left_out(path: Path, label: str, kind: str, reason: str) -> Source:
    return Source(
        source=str(path),
        label=label,
        bytes=0,
        modified_ns=0,
        result="left out",
        kind=kind,
        reason=reason,
    )
