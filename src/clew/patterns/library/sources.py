"""Finds the files to import: the class of each, and its image digest or why it has none."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from clew.base.cores import map_in_threads
from clew.base.errors import InputError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.base.texts import counted
from clew.patterns.library.folders import SET_FILE
from clew.patterns.library.journal import (
    Journal,
    Picture,
    Source,
    describe_picture,
    digest_picture,
)
from clew.patterns.library.names import check_class_name, check_photo_name
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.photos.decode import PhotoError
from clew.patterns.photos.find import PhotoFolder, find_classes, find_photos
from clew.patterns.photos.photo import class_name
from clew.patterns.photos.walk import walk


@dataclass(frozen=True, kw_only=True)
class FoundSources:
    """The photos to examine, what is excluded by its name or path, and the number of files that are
    not photos by their names."""

    sources: tuple[Source, ...]
    excluded: tuple[Source, ...]
    other_files: int


def find_sources(
    pattern_set: PatternSet, roots: Sequence[Path], label: str | None = None
) -> FoundSources:
    """The photos below all roots; `label` is the class of them all.

    Raises InputError before anything is done, for a root that cannot be used and for an invalid
    class name.
    """
    label = None if label is None else check_class_name(label)
    found: dict[tuple[str, str], Source] = {}
    excluded: list[Source] = []
    other_files = 0
    for root in roots:
        _refuse_the_set_itself(pattern_set, root)
        root = root / "photos" if (root / SET_FILE).is_file() else root  # another set
        own_label, folder = _find(pattern_set, root, label, is_alone=len(roots) == 1)
        for photo in folder.photos:
            one = _describe(photo.path, own_label or check_class_name(str(photo.label)))
            found.setdefault((one.source, one.label), one)
        excluded += [
            _excluded(folder.root / fault.name, fault.label or "", fault.kind, fault.reason)
            for fault in folder.faults
        ]
        other_files += folder.other_files
    return FoundSources(
        sources=tuple(found.values()), excluded=tuple(excluded), other_files=other_files
    )


def _find(
    pattern_set: PatternSet, root: Path, label: str | None, *, is_alone: bool
) -> tuple[str | None, PhotoFolder]:
    """The photos below a root, and their class if it is one for all."""
    if label is None and root.is_file():
        raise InputError(f'"{root}" is a single file: give its class with `label`.')
    if root.is_file():
        check_photo_name(root)
    found = find_photos(root)
    if label is not None:
        return label, found
    if any("/" in photo.name for photo in found.photos):
        return None, find_classes(root, at_least=1)
    own = class_name(found.root.name)
    if is_alone:
        raise InputError(
            f'the photos in "{root}" are not in class folders: if they all belong to one class, '
            "name it with ",
            pattern_set.call_to_import(root, label=own),
            "; otherwise put each class into its own folder.",
        )
    return check_class_name(own), found  # several folders of photos: each is a class


def _refuse_the_set_itself(pattern_set: PatternSet, root: Path) -> None:
    own, other = pattern_set.folder.resolve(), root.resolve()
    if other.is_relative_to(own / "photos"):
        raise InputError(
            f'"{root}" is inside the set "{pattern_set.name}", which already contains these '
            "photos: give another folder."
        )
    if own.is_relative_to(other):
        raise InputError(
            f'"{root}" contains the set "{pattern_set.name}" itself (in "{pattern_set.folder}"): '
            "give only the folder of the new photos."
        )


def _describe(path: Path, label: str) -> Source:
    try:
        found = os.stat(path)
    except OSError as error:
        return _excluded(path, label, "unreadable", f"it cannot be read ({error.strerror})")
    return Source(source=str(path), label=label, bytes=found.st_size, modified_ns=found.st_mtime_ns)


def _excluded(path: Path, label: str, kind: str, reason: str) -> Source:
    return Source(
        source=str(path),
        label=label,
        bytes=0,
        modified_ns=0,
        result="excluded",
        kind=kind,
        reason=reason,
    )


def look_at_photos(
    journal: Journal,
    photos: Path,
    sources: Iterable[Source],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Source] | None:
    """The sources with their digests or faults; None when it was stopped.

    What the journal knows is not opened again. Photos that were put into the set by hand are
    examined too, so that none is imported twice.
    """
    known = [_recall(journal, source) for source in sources]
    unknown = [i for i, source in enumerate(known) if not (source.digest or source.kind)]
    by_hand = _unknown_photos(journal, photos)
    with report_work(reporter, start_photos("examine", len(unknown) + len(by_hand))):
        own = map_in_threads(lambda path: _look_at_own(photos, path), by_hand)
        for picture in own:
            if should_stop():
                return None
            if picture is not None:
                journal.note(picture)
            reporter(WorkAdvanced())
        looked = map_in_threads(_look, (known[i] for i in unknown))
        for index, source in zip(unknown, looked, strict=True):
            if should_stop():
                return None
            journal.note(source)
            known[index] = source
            reporter(WorkAdvanced())
    return known


def start_photos(step: Literal["examine", "copy", "move"], count: int) -> WorkStarted:
    """The event that starts a step of an import: photos are examined, then copied or moved."""
    done = {"examine": "examined", "copy": "copied", "move": "moved"}[step]
    estimate = f"{counted(count, 'photo')} to {step}"
    return WorkStarted(noun="photos", planned=count, verb=done, estimate=estimate)


def _recall(journal: Journal, source: Source) -> Source:
    """What an earlier import found about the same file, if it has not changed since."""
    before = journal.sources.get(source.source)
    if before is None or _stamp(before) != _stamp(source):
        return source
    is_faulty = not before.digest and before.result == "excluded"
    return replace(
        source,
        digest=before.digest,
        kind=before.kind if is_faulty else "",
        reason=before.reason if is_faulty else "",
    )


def _stamp(source: Source) -> tuple[int, int]:
    return source.bytes, source.modified_ns


def _look(source: Source) -> Source:
    try:
        return replace(source, digest=digest_picture(Path(source.source)))
    except PhotoError as error:
        return replace(source, result="excluded", kind=error.kind, reason=error.reason)


def _unknown_photos(journal: Journal, photos: Path) -> list[Path]:
    found = walk(photos).photos if photos.is_dir() else []
    return [photos / name for name in found if not _is_known(journal, name)]


def _is_known(journal: Journal, name: str) -> bool:
    picture = journal.pictures.get(name)
    return picture is not None and journal.is_there(picture)


def _look_at_own(photos: Path, path: Path) -> Picture | None:
    """Examine a photo of the set itself; None if it cannot be used, which training reports."""
    try:
        return describe_picture(photos, path, digest_picture(path))
    except PhotoError:
        return None
