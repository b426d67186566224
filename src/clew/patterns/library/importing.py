"""Imports folders of photos into a set: valid images once each, everything else listed.

Nothing is overwritten, and nothing copied twice: the same call resumes a killed import.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from clew.base.cores import map_in_threads
from clew.base.progress import Reporter, WorkAdvanced, log_event, report_work
from clew.patterns.library.journal import Journal, Source, describe_picture, write_listing
from clew.patterns.library.pattern_set import PatternSet, set_lock
from clew.patterns.library.placing import (
    class_folder,
    copy_beside,
    name_copy,
    remove_parts,
    remove_source,
)
from clew.patterns.library.sources import find_sources, look_at_photos, start_photos
from clew.storage.disk import refuse_full_disk
from clew.storage.writing import sync_folder

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
    found = find_sources(pattern_set, sources, label)
    with set_lock(pattern_set):
        remove_parts(pattern_set.photos)
        journal = Journal(pattern_set.folder)
        photos = pattern_set.photos
        try:
            looked = look_at_photos(journal, photos, found.sources, reporter, should_stop)
            decided = decide(journal, looked or [])
            own = [root.expanduser().resolve() for root in sources] if move else []
            done = _carry_out(pattern_set, journal, decided, own, reporter, should_stop)
            for source in found.excluded:
                _note(journal, source)
        finally:
            remove_parts(photos)
            listing = write_listing(pattern_set.folder, journal)
    return ImportResult(
        results=(*done, *found.excluded),
        other_files=found.other_files,
        listing=listing,
        is_finished=looked is not None and len(done) == len(looked),
    )


def decide(journal: Journal, looked: Sequence[Source]) -> list[Source]:
    """Decide what to do with each file; an empty `result` means that it will be added."""
    groups: dict[str, list[Source]] = defaultdict(list)
    for source in looked:
        if source.digest:
            groups[source.digest].append(source)
    return [_decide(journal, source, groups.get(source.digest, [])) for source in looked]


def _decide(journal: Journal, source: Source, same: Sequence[Source]) -> Source:
    if not source.digest:
        return replace(source, result="excluded")
    other = next((one for one in same if one.label != source.label), None)
    if other is not None:
        return _contradict(source, other.source, other.label)
    if same[0] is not source:
        reason = f'the same image as "{same[0].source}"'
        return replace(source, result="excluded", kind="duplicate", reason=reason)
    there = journal.find(source.digest)
    if there is None and journal.was_removed(source.digest):
        reason = "it was removed from the set when that was cleaned"
        return replace(source, result="excluded", kind="removed", reason=reason)
    if there is None:
        return replace(source, result="")
    if there.label != source.label:
        return _contradict(source, f"photos/{there.photo}", there.label)
    return replace(source, result="already there", photo=there.photo)


def _contradict(source: Source, other: str, label: str) -> Source:
    reason = f'the same image is in the class "{label}", as "{other}": it cannot be in both classes'
    return replace(source, result="excluded", kind="contradiction", reason=reason)


def _carry_out(
    pattern_set: PatternSet,
    journal: Journal,
    decided: Sequence[Source],
    emptied: Sequence[Path],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Source]:
    """Copy the photos, and delete those that lie in the folders `emptied`; returns those that were
    done before the import ended or was stopped."""
    move = bool(emptied)
    to_add = [source for source in decided if not source.result]
    if not move:  # moving frees the space again
        refuse_full_disk(
            pattern_set.folder,
            sum(source.bytes for source in to_add),
            what="the photos require",
            advice=(
                "Nothing was copied: free some space, or put the library on another disk "
                "(`library`)."
            ),
        )
    # Threads wait for the disk; names are assigned one by one, so that they are the same every
    # time.
    copies = map_in_threads(lambda source: _copy(pattern_set.photos, source), to_add, _COPYING)
    done = []
    work = start_photos("move" if move else "copy", len(to_add))
    with report_work(reporter, work), closing(copies):
        for source in decided:
            if should_stop():
                break
            if not source.result:
                source = _add(pattern_set.photos, journal, source, next(copies), emptied)
                reporter(WorkAdvanced(written_bytes=source.bytes))
            _note(journal, source)
            done.append(source)
    return done


def _copy(photos: Path, source: Source) -> Path | str:
    """The copy, or why there is none."""
    try:
        return copy_beside(Path(source.source), class_folder(photos, source.label))
    except OSError as error:
        if error.filename != source.source:
            raise
        return f"it could be read but not copied ({error.strerror})"


def _add(
    photos: Path, journal: Journal, source: Source, copy: Path | str, emptied: Sequence[Path]
) -> Source:
    if isinstance(copy, str):
        return replace(source, result="excluded", kind="unreadable", reason=copy)
    path = Path(source.source)
    photo = describe_picture(photos, name_copy(copy, path.name), source.digest)
    journal.note(photo)
    if _lies_in(path, emptied):
        sync_folder(copy.parent)
        remove_source(path)
    return replace(source, result="added", photo=photo.photo)


def _lies_in(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a photo is in one of the given folders, or is one of the given files. One that a
    linked folder leads to is not: nobody asked for that folder to be emptied."""
    real = path.parent.resolve()
    return any(real.is_relative_to(folder) or path.resolve() == folder for folder in folders)


def _note(journal: Journal, source: Source) -> None:
    """Record the result of a source, once: if a photo is imported again, the listing still says
    that it was added."""
    before = journal.sources.get(source.source)
    if before == source:
        return
    was_added = before is not None and before.result == "added" and before.photo == source.photo
    if not (was_added and source.result == "already there"):
        journal.note(source)
