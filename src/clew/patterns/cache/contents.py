"""The store of decoded photos, and which file has which image without opening either: files are
known by name, size and date; duplicates and faulty ones are remembered in a ledger."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int32, Int64

from clew.base.typed_json import read_as
from clew.base.urls import UrlPath
from clew.patterns.cache.rows import ID, RowStore
from clew.patterns.photos.photo import Photo
from clew.storage.manifest import read_manifest
from clew.storage.places import open_place
from clew.storage.reader import StoreReader
from clew.storage.reading import open_regular, parse_json
from clew.storage.working_copy import fetched
from clew.storage.writing import append_to_file, disk_errors, is_leftover
from clew.version import __version__

KIND = "photos"
CHANNELS = 3
_ADVICE = "Free some space and run the same command again, or choose a smaller `image_size`."
# Changes when photos are turned into squares differently: old squares would not match new ones.
_METHOD = "whole photo, squashed"
_GONE = -1
LEDGER_NAME = "other_files.jsonl"
# Another clew or Pillow version may be able to read what these could not.
_READ_BY = f"clew {__version__}, Pillow {PIL.__version__}"
_NO_ROW = -1
_STAMP = ("name", "file_bytes", "modified_ns")


def image_bytes(size: int) -> int:
    return size * size * CHANNELS


def image_schema(size: int) -> pa.Schema:
    numbers = {"file_bytes": pa.int64(), "modified_ns": pa.int64()}
    sides = {"width": pa.int32(), "height": pa.int32()}
    columns = {ID: pa.int64(), "name": pa.string(), **numbers, "digest": pa.string(), **sides}
    columns["image"] = pa.list_(pa.uint8(), image_bytes(size))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


@dataclass(frozen=True, kw_only=True)
class Stamps:
    """Size and modification time of each photo's file. A missing or unreadable file has size -1:
    getting permission to read it would change neither its size nor its date."""

    names: pa.StringArray
    file_bytes: Int64[np.ndarray, " photos"]
    modified_ns: Int64[np.ndarray, " photos"]

    def __len__(self) -> int:
        return len(self.names)

    def keys(self) -> pa.StringArray:
        """One key per file; files with the same key are considered the same, unchanged file."""
        return join_keys(self.names, pa.array(self.file_bytes), pa.array(self.modified_ns))

    def are_gone(self) -> Bool[np.ndarray, " photos"]:
        return self.file_bytes == _GONE

    def take(self, places: Sequence[int] | np.ndarray) -> "Stamps":
        chosen = np.asarray(places, np.int64)
        return Stamps(
            names=self.names.take(pa.array(chosen)),
            file_bytes=self.file_bytes[chosen],
            modified_ns=self.modified_ns[chosen],
        )


def stamp_photos(photos: Sequence[Photo]) -> Stamps:
    """Get the size and date of every photo from the file system. Call this before reading the
    files, so that one that changes in between is read again next time."""
    found = np.fromiter(map(_ask, photos), np.dtype((np.int64, 2)), count=len(photos))
    return Stamps(
        names=pa.array([photo.name for photo in photos], pa.string()),
        file_bytes=np.ascontiguousarray(found[:, 0]),
        modified_ns=np.ascontiguousarray(found[:, 1]),
    )


def join_keys(names: pa.Array, file_bytes: pa.Array, modified_ns: pa.Array) -> pa.StringArray:
    # The numbers come first: no name can be mistaken for one with other numbers.
    numbers = (file_bytes.cast(pa.string()), modified_ns.cast(pa.string()))
    return pc.binary_join_element_wise(*numbers, names, " ")


def _ask(photo: Photo) -> tuple[int, int]:
    try:
        found = os.stat(photo.path)
    except OSError:
        return _GONE, _GONE
    if not os.access(photo.path, os.R_OK):
        return _GONE, _GONE
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherFile:
    """A file by its key, with the digest of its image, or what is wrong with it."""

    key: str
    digest: str | None = None
    kind: str | None = None
    reason: str | None = None


class Ledger:
    """Files without a row of their own, remembered so that they need not be opened again.

    One line per file, append-only: a kill loses at most the last line, which is recovered by
    reading the file again. At a URL, where nothing can be appended, lines wait for `save`.
    """

    def __init__(self, store: Path) -> None:
        self._store, self._path = store, store / LEDGER_NAME
        self._waiting: list[bytes] = []

    def read(self) -> list[OtherFile]:
        with fetched(self._store, LEDGER_NAME) as path:
            if not is_leftover(path):
                return []
            with open_regular(path) as file:
                parsed = [_parse(line) for line in file]
        return [entry for entry in parsed if entry is not None]

    def add(self, entries: Iterable[OtherFile]) -> None:
        """Append entries; raises DiskFullError if the disk is full."""
        lines = b"".join(map(_line, entries))
        if isinstance(self._store, UrlPath):
            self._waiting.append(lines)
        elif lines:
            _append(self._path, lines)

    def save(self) -> None:
        """Put what waits at the URL. The caller holds the lock of the store."""
        lines, self._waiting = b"".join(self._waiting), []
        if not lines:
            return
        with fetched(self._store, LEDGER_NAME) as path:
            _append(path, lines)
            open_place(self._store).replace(LEDGER_NAME, path, None)


def _append(path: Path, lines: bytes) -> None:
    """After a line that a killed process wrote half, on a new one."""
    with disk_errors(path.parent), append_to_file(path) as file:
        if os.fstat(file.fileno()).st_size:
            file.seek(-1, os.SEEK_END)
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        file.write(lines)


def _line(entry: OtherFile) -> bytes:
    filled = {name: value for name, value in asdict(entry).items() if value is not None}
    return json.dumps({**filled, "read_by": _READ_BY}).encode() + b"\n"


def _parse(line: bytes) -> OtherFile | None:
    """Parse a line; None for a truncated one, and for a fault that should be checked again."""
    try:
        found = read_as(dict[str, Any], parse_json(line))
        read_by = found.pop("read_by", None)
        entry = read_as(OtherFile, found)
    except ValueError:
        return None
    is_whole = (entry.digest is None) != (entry.kind is None)
    return entry if is_whole and (entry.digest is not None or read_by == _READ_BY) else None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a store without the images: one entry per row, in the order of the store,
    about 100 bytes each."""

    keys: pa.StringArray
    digests: pa.StringArray
    sizes: Int32[np.ndarray, "rows 2"]  # width and height of the file
    next_id: int  # ids are never reused, even when rows were lost
    copies: dict[str, str]  # the digests of files that have no row of their own, by key
    faults: dict[str, OtherFile]

    def __len__(self) -> int:
        return len(self.digests)

    def find(self, keys: pa.StringArray) -> Int64[np.ndarray, " files"]:
        """The row that holds each file's image, -1 if there is none. Of identical images it is the
        first, whatever file it came from."""
        digests = pc.take(self.digests, pc.index_in(keys, value_set=self.keys))
        if self.copies:
            copied = [self.copies.get(key) for key in keys.to_pylist()]
            digests = pc.coalesce(digests, pa.array(copied, pa.string()))
        rows = pc.index_in(digests, value_set=self.digests, skip_nulls=True)
        return rows.fill_null(_NO_ROW).to_numpy().astype(np.int64)

    def are_faulty(self, keys: pa.StringArray) -> Bool[np.ndarray, " files"]:
        if not self.faults:
            return np.zeros(len(keys), bool)
        return np.array([key in self.faults for key in keys.to_pylist()], bool)


def read_contents(reader: StoreReader | None, others: Iterable[OtherFile]) -> Contents:
    """Read the contents of a store shard by shard, so that no shard stays mapped. `reader` is None
    for a store that does not exist yet."""
    keys, digests, sizes, next_id = [], [], [np.zeros((0, 2), np.int32)], 0
    for number in range(0 if reader is None else len(reader.shards)):
        assert reader is not None
        table = reader.peek(number).read_columns((*_STAMP, "digest", "width", "height", ID))
        keys += [join_keys(*of) for of in zip(*(table[n].chunks for n in _STAMP), strict=True)]
        # A copy: a view would keep the shard mapped, and the pages around it count as ours.
        digests.append(pa.array(table["digest"].to_pylist(), pa.string()))
        sizes.append(np.stack([table[name].to_numpy() for name in ("width", "height")], axis=1))
        next_id = max(next_id, int(table[ID].to_numpy().max(initial=-1)) + 1)
    entries = list(others)
    return Contents(
        keys=_join(keys),
        digests=_join(digests),
        sizes=np.concatenate(sizes),
        next_id=next_id,
        copies={entry.key: entry.digest for entry in entries if entry.digest is not None},
        faults={entry.key: entry for entry in entries if entry.digest is None},
    )


def _join(arrays: Sequence[pa.Array]) -> pa.StringArray:
    return pa.concat_arrays([pa.array([], pa.string()), *arrays])


class ImageStore(RowStore):
    """The store of one size."""

    def __init__(self, path: Path, size: int, cache_dir: Path | None = None) -> None:
        super().__init__(
            path,
            image_schema(size),
            kind=KIND,
            identity={"size": size, "method": _METHOD},
            row_bytes=image_bytes(size),
            work="read the photos",
            advice=_ADVICE,
            cache_dir=cache_dir,
        )
        self.size = size
        self.ledger = Ledger(path)

    def read(self) -> Contents:
        """Read the contents of the store. Raises StoreError if the folder holds something else."""
        if not self.exists():
            return read_contents(None, ())
        self.refuse_other(read_manifest(self.path))
        return read_contents(self.open_reader(), self.ledger.read())
