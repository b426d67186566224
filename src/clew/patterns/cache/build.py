"""Fill the cache of a folder: only what is new or changed is decoded, and a kill loses nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from clew.errors import TrainingStoppedError
from clew.patterns.cache.cached import CachedPhotos, judge_photos
from clew.patterns.cache.contents import Contents
from clew.patterns.cache.ledger import OtherFile
from clew.patterns.cache.rows import SeenPictures, build_rows
from clew.patterns.cache.squares import Squares, decode_photos
from clew.patterns.cache.stamps import Stamps, stamp_photos
from clew.patterns.cache.store import ROOM_ADVICE, ImageStore, image_bytes
from clew.patterns.photos.find import PhotoFolder
from clew.patterns.photos.photo import Fault, Photo
from clew.progress import Note, Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.storage.disk import refuse_full_disk
from clew.wording import bytes_text, counted

# Besides the picture: its name, digest and numbers, and what Arrow puts around them.
_ROW_EXTRA_BYTES = 512


def cache_photos(
    folder: PhotoFolder,
    cache_dir: Path,
    size: int,
    *,
    workers: int,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CachedPhotos:
    """Decode the photos of `folder` that `cache_dir` does not hold yet, and say which are usable.

    Each size has a store of its own in `cache_dir`. The same call again goes on after a kill, and
    ends with the same rows. Raises DiskFullError (beforehand, where that can be told),
    StoreLockedError, StoreError, and TrainingStoppedError when `should_stop` says yes.
    """
    photos = sorted(folder.photos, key=lambda photo: photo.name)
    stamps = stamp_photos(photos)
    store = ImageStore(cache_dir / f"{size}px", size)
    contents, passing = store.read() if store.is_whole() else None, {}
    if contents is None or len(find_new(contents, stamps)):
        with store.locked():
            filling = _Filling(store, photos, stamps, reporter or log_event)
            passing = filling.run(workers, should_stop)
        contents = store.read()
    return judge_photos(store.path, size, photos, stamps, contents, passing)


def find_new(contents: Contents, stamps: Stamps) -> Int64[np.ndarray, " new"]:
    """The places of files that must be opened."""
    keys = stamps.keys()
    unknown = contents.find(keys) < 0
    return np.flatnonzero(unknown & ~contents.are_faulty(keys) & ~stamps.are_gone())


class _Filling:
    """One run over what is lacking, for who holds the store's lock."""

    def __init__(
        self,
        store: ImageStore,
        photos: Sequence[Photo],
        stamps: Stamps,
        reporter: Reporter,
    ) -> None:
        self._store, self._photos, self._stamps = store, photos, stamps
        self._reporter = reporter
        self._passing: dict[str, Fault] = {}

    def run(self, workers: int, should_stop: Callable[[], bool]) -> dict[str, Fault]:
        """Returns faults that may be gone the next time, by the photo's name."""
        lost = self._store.heal()
        if lost:
            self._reporter(
                Note(
                    f'{lost:,} pictures of "{self._store.path}" were damaged or gone: they are '
                    f"read from the photos again."
                )
            )
        contents = self._store.read()
        new = find_new(contents, self._stamps)
        self._refuse_full_disk(len(new))
        if len(new):
            with report_work(self._reporter, self._start(len(new))):
                self._decode(new, contents, workers, should_stop)
        return self._passing

    def _start(self, new: int) -> WorkStarted:
        planned, size = len(self._photos), bytes_text(self._row_bytes() * new)
        return WorkStarted(
            noun="photos",
            planned=planned,
            done=planned - new,
            estimate=f"{counted(new, 'photo')} to read once: at most {size} on disk",
        )

    def _decode(
        self,
        new: Int64[np.ndarray, " new"],
        contents: Contents,
        workers: int,
        should_stop: Callable[[], bool],
    ) -> None:
        planned, done = len(self._photos), len(self._photos) - len(new)
        seen, writer = SeenPictures(contents), self._store.add_rows()
        photos = [self._photos[place] for place in new]
        try:
            for squares in decode_photos(photos, self._store.size, workers):
                count = len(squares.digests)
                stamps = self._stamps.take(new[squares.first : squares.first + count])
                rows = build_rows(squares, stamps, seen, self._store.size)
                written = writer.write(rows)
                self._note_others(squares, stamps, rows)
                self._reporter(WorkAdvanced(count=count, written_bytes=written))
                done += count
                if should_stop() and done < planned:
                    raise _stopped(done, planned)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _note_others(self, squares: Squares, stamps: Stamps, rows: pa.RecordBatch) -> None:
        """Copies and faulty ones, once the rows are written that the copies are copies of."""
        with_row = set(rows.column("name").to_pylist())
        others = []
        for place, (key, name) in enumerate(
            zip(stamps.keys().to_pylist(), stamps.names.to_pylist(), strict=True)
        ):
            fault = squares.faults.get(place)
            if fault is None and name not in with_row:
                others.append(OtherFile(key=key, digest=squares.digests[place]))
            elif fault is not None and fault.kind == "unreadable":
                self._passing[fault.name] = fault
            elif fault is not None:
                others.append(OtherFile(key=key, kind=fault.kind, reason=fault.reason))
        self._store.ledger.add(others)

    def _row_bytes(self) -> int:
        return image_bytes(self._store.size) + _ROW_EXTRA_BYTES

    def _refuse_full_disk(self, new: int) -> None:
        needed = new * self._row_bytes() + (self._store.bytes_to_copy() if new else 0)
        what = f"{new:,} photos of {self._store.size} x {self._store.size} pixels take up to"
        refuse_full_disk(self._store.path, needed, what=what, advice=ROOM_ADVICE)


def _stopped(done: int, planned: int) -> TrainingStoppedError:
    return TrainingStoppedError(
        f"stopped while the photos were read: {done:,} of {planned:,} are done and kept; the same "
        f"command goes on with the rest."
    )
