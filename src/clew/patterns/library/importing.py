"""Imports folders of photos into a set: valid images once each, everything else listed.

Nothing is overwritten, and nothing copied twice: the same call resumes a killed import.
"""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from clew.base.cores import map_in_threads
from clew.base.errors import InputError
from clew.base.progress import Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.texts import counted
from clew.patterns.library.journal import Journal, Source, digest_picture, write_listing
from clew.patterns.library.pattern_set import SET_FILE, PatternSet, set_lock
from clew.patterns.library.placing import (
    check_class_name,
    check_photo_name,
    class_folder,
    copy_beside,
    name_copy,
    remove_parts,
    remove_source,
)
from clew.patterns.photos.find import PhotoFolder, find_classes, find_photos, walk
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import class_name
from clew.storage.writing import refuse_full_disk, sync_folder

_COPYING = 8  # photos copied in parallel


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """The result for every file; `listing` is the CSV that names them all.

    `results` are "added", "already there" or "excluded". `other_files` are not photos by their
    names. `is_finished` is False when it was stopped.
    """

    results: tuple[Source, ...]
    other_files: int
    listing: Path
    is_finished: bool

    def count(self, result: str) -> Counter[str]:
        """The number of files per class with that result."""
        return Counter(source.label for source in self.results if source.result == result)

    @property
    def excluded(self) -> list[Source]:
        return [source for source in self.results if source.result == "excluded"]


def import_photos(
    pattern_set: PatternSet,
    sources: Sequence[Path],
    *,
    label: str | None = None,
    move: bool = False,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> ImportResult:
    """Adds photos from folders with one folder per class; `label` is the class of all of them.

    Raises InputError for sources that cannot be used, DiskFullError, StoreLockedError.
    """
    reporter = reporter or log_event
    found, other_files = _find_sources(pattern_set, sources, label)
    with set_lock(pattern_set):
        remove_parts(pattern_set.photos)
        run = _Import(Journal(pattern_set.folder), reporter, should_stop)
        try:
            looked = run.look_at(found)
            own = [root.expanduser().resolve() for root in sources] if move else []
            done = run.carry_out(run.decide(looked or []), own)
        finally:
            remove_parts(pattern_set.photos)
            listing = write_listing(pattern_set.folder, run.journal)
    return ImportResult(
        results=tuple(done),
        other_files=other_files,
        listing=listing,
        is_finished=looked is not None and len(done) == len(looked),
    )


class _Import:
    """A running import: files are examined, then decided about, then copied."""

    def __init__(
        self, journal: Journal, reporter: Reporter, should_stop: Callable[[], bool]
    ) -> None:
        self.journal, self._report, self._should_stop = journal, reporter, should_stop

    def look_at(self, sources: Sequence[Source]) -> list[Source] | None:
        """The sources with their digests or faults; None when it was stopped.

        What the journal knows is not opened again. Photos that were put into the set by hand are
        examined too, so that none is imported twice.
        """
        journal, photos = self.journal, self.journal.photos
        known = [_recall(journal, source) for source in sources]
        unknown = [i for i, source in enumerate(known) if not (source.digest or source.kind)]
        names = walk(photos).photos if photos.is_dir() else []
        by_hand = [
            photos / name
            for name in names
            if not ((picture := journal.pictures.get(name)) and journal.is_there(picture))
        ]
        own = (Source(source=str(path), label="") for path in by_hand)
        looked = map_in_threads(_look, itertools.chain(own, (known[i] for i in unknown)))
        with self._working("examine", "examined", len(by_hand) + len(unknown)), closing(looked):
            for place, source in enumerate(looked, -len(by_hand)):
                if self._should_stop():
                    return None
                if place >= 0:
                    known[unknown[place]] = source
                    journal.note(source)
                elif source.digest:  # training reports those that cannot be used
                    journal.add(Path(source.source), source.digest)
                self._report(WorkAdvanced())
        return known

    def decide(self, looked: Sequence[Source]) -> list[Source]:
        """What to do with each file; an empty `result` means that it will be added."""
        groups: dict[str, list[Source]] = defaultdict(list)
        for source in looked:
            groups[source.digest].append(source)
        return [self._decide(source, groups[source.digest]) for source in looked]

    def _decide(self, source: Source, same: Sequence[Source]) -> Source:
        if not source.digest:
            return replace(source, result="excluded")
        other = next((one for one in same if one.label != source.label), None)
        if other is not None:
            return _contradict(source, other.source, other.label)
        if same[0] is not source:
            reason = f'the same image as "{same[0].source}"'
            return replace(source, result="excluded", kind="duplicate", reason=reason)
        there = self.journal.find(source.digest)
        if there is None and source.digest in self.journal.removed:
            reason = "it was removed from the set when that was cleaned"
            return replace(source, result="excluded", kind="removed", reason=reason)
        if there is None:
            return replace(source, result="")
        if there.label != source.label:
            return _contradict(source, f"photos/{there.photo}", there.label)
        return replace(source, result="already there", photo=there.photo)

    def carry_out(self, decided: Sequence[Source], emptied: Sequence[Path]) -> list[Source]:
        """Copy the photos, and delete those that lie in the folders `emptied`; returns those that
        were done before the import ended or was stopped."""
        photos = self.journal.photos
        to_add = [source for source in decided if not source.result]
        if not emptied:  # moving frees the space again
            refuse_full_disk(
                photos.parent,
                sum(source.bytes for source in to_add),
                what="the photos require",
                advice="Nothing was copied: free some space, or put the library on another disk "
                "(`library`).",
            )
        # Threads wait for the disk; names are assigned one by one, so that they are the same every
        # time.
        copies = map_in_threads(lambda source: _copy(photos, source), to_add, _COPYING)
        done = []
        step, verb = ("move", "moved") if emptied else ("copy", "copied")
        with self._working(step, verb, len(to_add)), closing(copies):
            for source in decided:
                if self._should_stop():
                    break
                if not source.result:
                    source = self._add(source, next(copies), emptied)
                    self._report(WorkAdvanced(written_bytes=source.bytes))
                self._note(source)
                done.append(source)
        return done

    def _add(self, source: Source, copy: Path | str, emptied: Sequence[Path]) -> Source:
        if isinstance(copy, str):
            return replace(source, result="excluded", kind="unreadable", reason=copy)
        path = Path(source.source)
        photo = self.journal.add(name_copy(copy, path.name), source.digest)
        # One that a linked folder leads to stays: nobody asked for that folder to be emptied.
        real = path.parent.resolve()
        if any(real.is_relative_to(folder) or path.resolve() == folder for folder in emptied):
            sync_folder(copy.parent)
            remove_source(path)
        return replace(source, result="added", photo=photo)

    def _note(self, source: Source) -> None:
        """Record the result of a source, once: if a photo is imported again, the listing still says
        that it was added."""
        before = self.journal.sources.get(source.source)
        was_added = before is not None and before.result == "added" and before.photo == source.photo
        if before != source and not (was_added and source.result == "already there"):
            self.journal.note(source)

    def _working(self, step: str, done: str, count: int) -> AbstractContextManager[None]:
        estimate = f"{counted(count, 'photo')} to {step}"
        started = WorkStarted(noun="photos", planned=count, verb=done, estimate=estimate)
        return report_work(self._report, started)


def _contradict(source: Source, other: str, label: str) -> Source:
    reason = f'the same image is in the class "{label}", as "{other}": it cannot be in both classes'
    return replace(source, result="excluded", kind="contradiction", reason=reason)


def _copy(photos: Path, source: Source) -> Path | str:
    """The copy, or why there is none."""
    try:
        return copy_beside(Path(source.source), class_folder(photos, source.label))
    except OSError as error:
        if error.filename != source.source:
            raise
        return f"it could be read but not copied ({error.strerror})"


def _find_sources(
    pattern_set: PatternSet, roots: Sequence[Path], label: str | None
) -> tuple[list[Source], int]:
    """The files below all roots, first those that are excluded by their names or paths; and the
    number of files that are not photos by their names. `label` is the class of them all.

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
        for fault in folder.faults:
            path = str(folder.root / fault.name)
            excluded.append(
                Source(source=path, label=fault.label or "", kind=fault.kind, reason=fault.reason)
            )
        other_files += folder.other_files
    return [*excluded, *found.values()], other_files


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
            pattern_set.call("import_photos", pattern_set.name, str(root), label=own),
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
    source = Source(source=str(path), label=label)
    try:
        found = os.stat(path)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        return replace(source, kind="unreadable", reason=reason)
    return replace(source, bytes=found.st_size, modified_ns=found.st_mtime_ns)


def _recall(journal: Journal, source: Source) -> Source:
    """What an earlier import found about the same file, if it has not changed since."""
    before = journal.sources.get(source.source)
    if before is None or source.kind:
        return source
    if (before.bytes, before.modified_ns) != (source.bytes, source.modified_ns):
        return source
    if before.digest or before.result != "excluded":
        return replace(source, digest=before.digest)
    return replace(source, kind=before.kind, reason=before.reason)


def _look(source: Source) -> Source:
    try:
        return replace(source, digest=digest_picture(Path(source.source)))
    except PhotoError as error:
        return replace(source, result="excluded", kind=error.kind, reason=error.reason)
