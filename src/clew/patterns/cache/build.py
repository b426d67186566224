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
from clew.patterns.cache.store import (
    GONE,
    Contents,
    ImageStore,
    OtherFile,
    image_bytes,
    image_schema,
    make_keys,
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
_MISSING = OtherFile(key="", kind="unreadable", reason="it is missing or cannot be read")


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
            temporary = _fill(store, photos, stamps, workers, reporter or log_event, should_stop)
        contents = store.read()
    cached = judge_photos(store.path, size, photos, stamps, contents, temporary)
    return replace(cached, cache_dir=cache_dir)


def find_new(contents: Contents, stamps: pa.RecordBatch) -> Int64[np.ndarray, " new"]:
    """The indices of files that must be opened."""
    keys = make_keys(stamps)
    unknown = contents.find(keys) < 0
    return np.flatnonzero(
        unknown & ~contents.are_faulty(keys) & (stamps["file_bytes"].to_numpy() != GONE)
    )


def _fill(
    store: ImageStore,
    photos: Sequence[Photo],
    stamps: pa.RecordBatch,
    workers: int,
    reporter: Reporter,
    should_stop: Callable[[], bool],
) -> dict[str, Fault]:
    """Add the missing photos to the store, whose lock the caller holds. Returns temporary faults,
    which may be gone next time, by the photo's name."""
    if lost := store.heal():
        words = f'the cache "{store.path}" has lost {counted(lost, "image")}: decoding again.'
        reporter(Note(words))
    contents = store.read()
    new = find_new(contents, stamps)
    if not len(new):
        return {}
    size, row_bytes = store.size, image_bytes(store.size) + _ROW_EXTRA_BYTES
    store.refuse_full_disk(
        len(new) * row_bytes + store.bytes_to_copy(),
        f"{counted(len(new), 'photo')} of {size} x {size} pixels require up to",
    )
    most = bytes_text(row_bytes * len(new))
    started = WorkStarted(
        noun="photos",
        planned=len(photos),
        done=len(photos) - len(new),
        estimate=f"{counted(len(new), 'photo')} to decode: at most {most} on disk",
    )
    digests, next_id, read = set(contents.digests.to_pylist()), contents.next_id, 0
    temporary: dict[str, Fault] = {}
    decoded = decode_photos([photos[place] for place in new], size, workers)
    with report_work(reporter, started), store.adding_rows() as writer, closing(decoded) as found:
        for squares in found:
            count = len(squares.digests)
            files = stamps.take(pa.array(new[read : read + count]))
            rows = _build_rows(squares, files, digests, next_id, size)
            written = writer.write(rows)
            # After the rows that duplicates refer to.
            store.ledger.add(_find_others(squares, files, rows, temporary))
            reporter(WorkAdvanced(count=count, written_bytes=written))
            read, next_id = read + count, next_id + rows.num_rows
            if should_stop() and read < len(new):
                writer.save()
                store.ledger.save()
                raise TrainingStoppedError(
                    f"stopped while reading photos: {started.done + read:,} of {len(photos):,} "
                    "were read and saved."
                )
    store.ledger.save()
    return temporary


def _build_rows(
    squares: Squares, files: pa.RecordBatch, digests: set[str], first_id: int, size: int
) -> pa.RecordBatch:
    """The rows for images that are not in `digests`, with the size and date of their files."""
    places = []
    for place, digest in enumerate(squares.digests):
        if digest is not None and digest not in digests:
            places.append(place)
            digests.add(digest)
    files = files.take(pa.array(places, pa.int64()))
    columns = [
        pa.array(np.arange(first_id, first_id + len(places))),
        *files.columns,
        pa.array([squares.digests[place] for place in places], pa.string()),
        *(pa.array(np.ascontiguousarray(side)) for side in squares.sizes[places].T),
        pa.FixedSizeListArray.from_arrays(
            pa.array(squares.images[places].reshape(-1)), image_bytes(size)
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=image_schema(size))


def _find_others(
    squares: Squares, files: pa.RecordBatch, rows: pa.RecordBatch, temporary: dict[str, Fault]
) -> Iterator[OtherFile]:
    """Duplicates and unreadable photos, for the ledger. Faults that may be gone next time are added
    to `temporary` instead."""
    if rows.num_rows == len(squares.digests):
        return
    with_row = set(rows.column("name").to_pylist())
    named = zip(make_keys(files).to_pylist(), files["name"].to_pylist(), strict=True)
    for place, (key, name) in enumerate(named):
        fault = squares.faults.get(place)
        if fault is None and name not in with_row:
            yield OtherFile(key=key, digest=squares.digests[place])
        elif fault is not None and fault.kind == "unreadable":
            temporary[fault.name] = fault
        elif fault is not None:
            yield OtherFile(key=key, kind=fault.kind, reason=fault.reason)


def judge_photos(
    store: Path,
    size: int,
    photos: Sequence[Photo],
    stamps: pa.RecordBatch,
    contents: Contents,
    temporary: Mapping[str, Fault],
) -> CachedPhotos:
    """Determine which photos are usable. `temporary` are faults that the cache does not
    remember, by the photo's name."""
    keys = make_keys(stamps)
    rows = contents.find(keys)
    without = np.flatnonzero(rows < 0)
    faults: dict[int, Fault] = {}
    for place, key in zip(without.tolist(), keys.take(pa.array(without)).to_pylist(), strict=True):
        known, photo = contents.faults.get(key, _MISSING), photos[place]
        fault = photo.fault(known.kind or "", known.reason or "")
        faults[place] = temporary.get(photo.name, fault)
    equal = list(_group_equal(rows))
    for group in equal:
        refused = refuse_equals([photos[place] for place in group])
        faults |= {
            place: refused[photos[place].name] for place in group if photos[place].name in refused
        }
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
            for group in equal
        },
    )


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
