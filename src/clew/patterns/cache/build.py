"""Fill the cache of a folder, and determine which of its photos are usable. Only what is new or
changed is decoded, and a kill loses nothing."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, Int64

from clew.base.cores import map_in_threads
from clew.base.errors import TrainingStoppedError
from clew.base.progress import Note, Reporter, WorkAdvanced, WorkStarted, log_event, report_work
from clew.base.texts import bytes_text, counted
from clew.patterns.cache.contents import (
    Contents,
    ImageStore,
    OtherFile,
    Stamps,
    image_bytes,
    image_schema,
    stamp_photos,
)
from clew.patterns.photos.decode import DecodingProcesses, Squares, photo_size
from clew.patterns.photos.find import PhotoFolder
from clew.patterns.photos.opening import PhotoError
from clew.patterns.photos.photo import Fault, Photo, refuse_equals
from clew.storage.mirror import open_folder

# Besides the image: its name, digest and numbers, and Arrow's own overhead.
_ROW_EXTRA_BYTES = 512
_PHOTOS_LOOKED_AT = 500
_SIZE_STEP = 32
# A thread takes at most this many at a time, and together they make one record batch; of few
# photos, every thread gets some.
_MOST_A_TASK, _TASKS_A_THREAD = 32, 4
# Starting processes takes as long as decoding some hundred small photos, and two threads hardly
# wait for each other.
_MANY_PHOTOS, _FEW_WORKERS = 1000, 2


@dataclass(frozen=True, kw_only=True)
class CachedPhotos:
    """The usable photos in the order of their names, with their rows in the store `store`.

    `faults` are those of single photos, in the order of their names; problems of the folder itself
    are not repeated here.
    """

    store: Path
    size: int
    photos: tuple[Photo, ...]
    rows: Int64[np.ndarray, " photos"]
    digests: list[str]
    sizes: Int32[np.ndarray, "photos 2"]  # width and height of the files
    faults: tuple[Fault, ...]
    # All photos that show the same image as another, by its digest, usable or not.
    copies: Mapping[str, tuple[Photo, ...]] = field(default_factory=dict)
    # For what is downloaded if the store is at a URL.
    cache_dir: Path | None = None

    @property
    def image_bytes(self) -> int:
        """The size of all images in memory."""
        return len(self.photos) * self.size * self.size * 3

    def open_store(self) -> Path:
        """The store as a path on this machine, to read it."""
        return open_folder(self.store, cache_dir=self.cache_dir)


def cache_photos(
    folder: PhotoFolder,
    images: Path,
    size: int,
    *,
    workers: int,
    cache_dir: Path | None = None,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CachedPhotos:
    """Decodes the photos of `folder` that `images` does not hold yet, and finds the usable ones.

    Each size has its own store in `images`, a folder or a URL; `cache_dir` is for what is
    downloaded from a URL. The same call resumes after a kill, and ends with the same rows. Raises
    DiskFullError (in advance if possible), StoreLockedError, StoreError, and TrainingStoppedError
    when `should_stop` returns true.
    """
    photos = sorted(folder.photos, key=lambda photo: photo.name)
    stamps = stamp_photos(photos)
    store = ImageStore(images / f"{size}px", size, cache_dir)
    contents, temporary = store.read() if store.is_whole() else None, {}
    if contents is None or len(find_new(contents, stamps)):
        with store.locked():
            filling = _Filling(store, photos, stamps, reporter or log_event)
            temporary = filling.run(workers, should_stop)
        contents = store.read()
    cached = judge_photos(store.path, size, photos, stamps, contents, temporary)
    return replace(cached, cache_dir=cache_dir)


def find_new(contents: Contents, stamps: Stamps) -> Int64[np.ndarray, " new"]:
    """The indices of files that must be opened."""
    keys = stamps.keys()
    unknown = contents.find(keys) < 0
    return np.flatnonzero(unknown & ~contents.are_faulty(keys) & ~stamps.are_gone())


class _Filling:
    """Adds the missing photos to the store; the caller must hold its lock."""

    def __init__(
        self,
        store: ImageStore,
        photos: Sequence[Photo],
        stamps: Stamps,
        reporter: Reporter,
    ) -> None:
        self._store, self._photos, self._stamps = store, photos, stamps
        self._reporter = reporter
        self._temporary: dict[str, Fault] = {}

    def run(self, workers: int, should_stop: Callable[[], bool]) -> dict[str, Fault]:
        """Decode the missing photos. Returns temporary faults, which may be gone next time, by the
        photo's name."""
        lost = self._store.heal()
        if lost:
            self._reporter(
                Note(
                    f'the cache "{self._store.path}" has lost {counted(lost, "image")}: decoding '
                    "again."
                )
            )
        contents = self._store.read()
        new = find_new(contents, self._stamps)
        if not len(new):
            return self._temporary
        size, row_bytes = self._store.size, image_bytes(self._store.size) + _ROW_EXTRA_BYTES
        self._store.refuse_full_disk(
            len(new) * row_bytes + self._store.bytes_to_copy(),
            f"{counted(len(new), 'photo')} of {size} x {size} pixels require up to",
        )
        planned, most = len(self._photos), bytes_text(row_bytes * len(new))
        started = WorkStarted(
            noun="photos",
            planned=planned,
            done=planned - len(new),
            estimate=f"{counted(len(new), 'photo')} to decode: at most {most} on disk",
        )
        with report_work(self._reporter, started):
            self._decode(new, contents, workers, should_stop)
        return self._temporary

    def _decode(
        self,
        new: Int64[np.ndarray, " new"],
        contents: Contents,
        workers: int,
        should_stop: Callable[[], bool],
    ) -> None:
        planned, read, known = len(self._photos), 0, len(self._photos) - len(new)
        new_images, writer = NewImages(contents), self._store.add_rows()
        photos = [self._photos[place] for place in new]
        try:
            with closing(decode_photos(photos, self._store.size, workers)) as found:
                for squares in found:
                    count = len(squares.digests)
                    stamps = self._stamps.take(new[read : read + count])
                    rows = build_rows(squares, stamps, new_images, self._store.size)
                    written = writer.write(rows)
                    self._note_others(squares, stamps, rows)
                    self._reporter(WorkAdvanced(count=count, written_bytes=written))
                    read += count
                    if should_stop() and read < len(new):
                        writer.save()
                        self._store.ledger.save()
                        raise TrainingStoppedError(
                            f"stopped while reading photos: {known + read:,} of {planned:,} were "
                            "read and saved."
                        )
            writer.finish()
            self._store.ledger.save()
        except BaseException:
            writer.abandon()
            raise

    def _note_others(self, squares: Squares, stamps: Stamps, rows: pa.RecordBatch) -> None:
        """Note duplicates and unreadable photos in the ledger, after the rows that the duplicates
        refer to have been written."""
        if rows.num_rows == len(squares.digests):
            return
        with_row = set(rows.column("name").to_pylist())
        others = []
        for place, (key, name) in enumerate(
            zip(stamps.keys().to_pylist(), stamps.names.to_pylist(), strict=True)
        ):
            fault = squares.faults.get(place)
            if fault is None and name not in with_row:
                others.append(OtherFile(key=key, digest=squares.digests[place]))
            elif fault is not None and fault.kind == "unreadable":
                self._temporary[fault.name] = fault
            elif fault is not None:
                others.append(OtherFile(key=key, kind=fault.kind, reason=fault.reason))
        self._store.ledger.add(others)


def judge_photos(
    store: Path,
    size: int,
    photos: Sequence[Photo],
    stamps: Stamps,
    contents: Contents,
    temporary: Mapping[str, Fault],
) -> CachedPhotos:
    """Determine which photos are usable. `temporary` are faults that the cache does not
    remember, by the photo's name."""
    keys = stamps.keys()
    rows = contents.find(keys)
    without = np.flatnonzero(rows < 0)
    lacking = zip(without.tolist(), keys.take(pa.array(without)).to_pylist(), strict=True)
    faults = {
        place: _find_fault(photos[place], contents.faults.get(key), temporary)
        for place, key in lacking
    }
    faults.update(_find_equals(photos, rows))
    usable = np.array([place for place in range(len(photos)) if place not in faults], np.int64)
    return CachedPhotos(
        store=store,
        size=size,
        photos=tuple(photos[place] for place in usable.tolist()),
        rows=rows[usable],
        digests=contents.digests.take(rows[usable]).to_pylist(),
        sizes=contents.sizes[rows[usable]],
        faults=tuple(faults[place] for place in sorted(faults)),
        copies={
            contents.digests[int(rows[group[0]])].as_py(): tuple(photos[one] for one in group)
            for group in _group_equal(rows)
        },
    )


def _find_fault(photo: Photo, known: OtherFile | None, temporary: Mapping[str, Fault]) -> Fault:
    if photo.name in temporary:
        return temporary[photo.name]
    kind, reason = "unreadable", "it is missing or cannot be read"
    if known is not None:
        kind, reason = known.kind or "", known.reason or ""
    return photo.fault(kind, reason)


def _find_equals(
    photos: Sequence[Photo], rows: Int64[np.ndarray, " photos"]
) -> Iterator[tuple[int, Fault]]:
    for places in _group_equal(rows):
        faults = refuse_equals([photos[place] for place in places])
        named = ((place, photos[place].name) for place in places)
        yield from ((place, faults[name]) for place, name in named if name in faults)


def _group_equal(rows: Int64[np.ndarray, " photos"]) -> Iterator[list[int]]:
    """The indices of photos that share a row."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    for group in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        if len(group) > 1:
            yield group.tolist()


def choose_size(folder: PhotoFolder, sizes: tuple[int, int] = (32, 128)) -> int:
    """Choose the side of the squares in pixels: that of a square with the photos' median area,
    rounded to a multiple of 32, within `sizes`. Reads the headers of up to 500 photos; the largest
    size when none can be read."""
    smallest, largest = sizes
    photos, count = folder.photos, min(len(folder.photos), _PHOTOS_LOOKED_AT)
    sides = []
    # From all over the folder, the same every time.
    for place in np.linspace(0, len(photos) - 1, count).round().astype(int):
        try:
            sides.append(math.sqrt(math.prod(photo_size(photos[place].path))))
        except PhotoError:  # reported when it is decoded
            continue
    if not sides:
        return largest
    side = _SIZE_STEP * round(float(np.median(sides)) / _SIZE_STEP)
    return min(max(smallest, side), largest)


def decode_photos(
    photos: Sequence[Photo], size: int, workers: int
) -> Generator[Squares, None, None]:
    """Decode photos and yield them in order, some at a time; no more is decoded ahead than keeps
    the workers busy. These are threads; each has a process of its own if that is faster."""
    workers = max(1, workers)
    at_once = min(_MOST_A_TASK, -(-len(photos) // (_TASKS_A_THREAD * workers)))
    tasks = (photos[first : first + at_once] for first in range(0, len(photos), at_once or 1))
    is_worth_it = workers > _FEW_WORKERS and len(photos) >= _MANY_PHOTOS
    with DecodingProcesses(workers if is_worth_it else 0) as processes:
        read = partial(processes.read_squares, size=size)
        yield from map_in_threads(read, tasks, workers, ahead=workers)


class NewImages:
    """The digests of all images so far, and the id of the next row."""

    def __init__(self, contents: Contents) -> None:
        self._digests = set(contents.digests.to_pylist())
        self._next_id = contents.next_id

    def is_new(self, digest: str | None) -> bool:
        """Whether the image has not been seen before; remembers it. None is not an image."""
        if digest is None or digest in self._digests:
            return False
        self._digests.add(digest)
        return True

    def take_ids(self, count: int) -> np.ndarray:
        self._next_id += count
        return np.arange(self._next_id - count, self._next_id)


def build_rows(
    squares: Squares, stamps: Stamps, new_images: NewImages, size: int
) -> pa.RecordBatch:
    """The rows for images that are new, with the size and date of their files."""
    digests = squares.digests
    places = [place for place, digest in enumerate(digests) if new_images.is_new(digest)]
    files = stamps.take(places)
    pixels = squares.images[places].reshape(-1)
    columns = [
        pa.array(new_images.take_ids(len(places))),
        files.names,
        pa.array(files.file_bytes),
        pa.array(files.modified_ns),
        pa.array([digests[place] for place in places], pa.string()),
        *(pa.array(np.ascontiguousarray(side)) for side in squares.sizes[places].T),
        pa.FixedSizeListArray.from_arrays(pa.array(pixels), image_bytes(size)),
    ]
    schema = image_schema(size)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
