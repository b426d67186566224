"""Looks at photos before they are imported: which picture each one is, or why it is none."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from clew.patterns.library.adding import describe, digest_picture
from clew.patterns.library.journal import Journal, Picture, Source
from clew.patterns.photos.decode import PhotoError
from clew.patterns.photos.walk import walk
from clew.progress import Reporter, WorkAdvanced, WorkStarted, report_work
from clew.threads import map_in_threads
from clew.wording import counted


def look_at_photos(
    journal: Journal,
    photos: Path,
    sources: Iterable[Source],
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> list[Source] | None:
    """The sources with their digests or faults; None when it was stopped.

    What the journal knows is not opened again. Photos that were put into the set by hand are
    looked at as well, so that none is taken in twice.
    """
    known = [_recall(journal, source) for source in sources]
    unknown = [i for i, source in enumerate(known) if not (source.digest or source.kind)]
    by_hand = _unknown_photos(journal, photos)
    with report_work(reporter, start_photos("looked at", len(unknown) + len(by_hand))):
        for picture in map_in_threads(lambda path: _look_at_own(photos, path), by_hand):
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


def start_photos(verb: str, count: int) -> WorkStarted:
    """An import is two pieces of work: photos are "looked at", then "copied" or "moved"."""
    estimate = f"{counted(count, 'photo')} to be {verb}"
    return WorkStarted(noun="photos", planned=count, verb=verb, estimate=estimate)


def _recall(journal: Journal, source: Source) -> Source:
    """What an earlier import found out about the same file, if it has not changed since."""
    before = journal.sources.get(source.source)
    if before is None or _stamp(before) != _stamp(source):
        return source
    is_faulty = not before.digest and before.result == "left out"
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
        return replace(source, result="left out", kind=error.kind, reason=error.reason)


def _unknown_photos(journal: Journal, photos: Path) -> list[Path]:
    found = walk(photos).photos if photos.is_dir() else []
    return [photos / name for name in found if not _is_known(journal, name)]


def _is_known(journal: Journal, name: str) -> bool:
    picture = journal.pictures.get(name)
    return picture is not None and journal.is_there(picture)


def _look_at_own(photos: Path, path: Path) -> Picture | None:
    """None for one that cannot be used: training names it."""
    try:
        return describe(photos, path, digest_picture(path))
    except PhotoError:
        return None
