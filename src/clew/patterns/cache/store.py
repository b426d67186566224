"""Stores of rows that grow, and that of decoded photos: which file has which image, without opening
either. Files are known by name, size and date; duplicates and faulty ones are in a ledger."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int32, Int64

from clew.base.errors import StoreError, StoreLockedError
from clew.base.typed_json import read_as
from clew.base.urls import UrlPath
from clew.patterns.photos.photo import Photo
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import (
    Manifest,
    ShardEntry,
    has_manifest,
    read_manifest,
    start_manifest,
    update_manifest,
)
from clew.storage.mirror import open_folder
from clew.storage.origin import describe_in_schema
from clew.storage.place import AccessDeniedError
from clew.storage.places import open_place
from clew.storage.reader import StoreReader
from clew.storage.reading import open_regular, parse_json
from clew.storage.repair import add_shard
from clew.storage.uploading import numbers_with_pieces, open_writer
from clew.storage.working_copy import fetched, scratch_root
from clew.storage.writer import ShardWriter
from clew.storage.writing import append_to_file, disk_errors, is_leftover, refuse_full_disk
from clew.version import __version__

ID = "global_example_id"
# Small enough to be copied quickly when it grows, large enough for few files.
_SHARD_BYTES = 128 << 20
# A record batch that goes to a URL is at least this large: each takes a request.
_BATCH_BYTES_AT_URL = 4 << 20
_SCRATCH_ADVICE = "Free some space, or set TMPDIR to a folder on a larger disk."
_SHARD_FILE = re.compile(r"batch_(\d+)\.arrow(\.part|\.recovered)?")
KIND = "photos"
CHANNELS = 3
_ADVICE = "Free some space and run the same command again, or choose a smaller `image_size`."
# Changes when photos are turned into squares differently: old squares would not match new ones.
_METHOD = "whole photo, squashed"
GONE = -1
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


def stamp_photos(photos: Sequence[Photo]) -> pa.RecordBatch:
    """Name, size and modification time of every photo's file. A missing or unreadable file has size
    -1: getting permission to read it would change neither its size nor its date.

    Call this before reading the files, so that one that changes in between is read again next time.
    """
    found = np.fromiter(map(_ask, photos), np.dtype((np.int64, 2)), count=len(photos))
    names = pa.array([photo.name for photo in photos], pa.string())
    columns = (names, *(pa.array(np.ascontiguousarray(one)) for one in found.T))
    return pa.record_batch(dict(zip(_STAMP, columns, strict=True)))


def make_keys(stamps: pa.RecordBatch) -> pa.StringArray:
    """One key per file; files with the same key are considered the same, unchanged file."""
    # The numbers come first: no name can be mistaken for one with other numbers.
    name, *numbers = (stamps.column(one) for one in _STAMP)
    return pc.binary_join_element_wise(*(one.cast(pa.string()) for one in numbers), name, " ")


def _ask(photo: Photo) -> tuple[int, int]:
    try:
        found = os.stat(photo.path)
    except OSError:
        return GONE, GONE
    if not os.access(photo.path, os.R_OK):
        return GONE, GONE
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
    keys: list[pa.StringArray] = []
    digests, sizes, next_id = [], [np.zeros((0, 2), np.int32)], 0
    for number in range(0 if reader is None else len(reader.shards)):
        assert reader is not None
        table = reader.peek(number).read_columns((*_STAMP, "digest", "width", "height", ID))
        keys += map(make_keys, table.select(_STAMP).to_batches())
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


class RowStore:
    """Rows of `schema` at `path`, a folder or a URL. `identity` says what they are: a store with
    another one is refused. `work` completes "until it has ..." for those who wait for the lock;
    `advice` says what helps when the disk is full; `cache_dir` is for what is downloaded from a
    URL."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        kind: str,
        identity: Mapping[str, Any],
        row_bytes: int,
        work: str,
        advice: str,
        cache_dir: Path | None = None,
    ) -> None:
        self.path, self.schema, self.kind = path, schema, kind
        self._identity, self._row_bytes = dict(identity), row_bytes
        self._work, self._advice, self._cache_dir = work, advice, cache_dir

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store's lock; raises StoreLockedError if another process is adding to it."""
        with ExitStack() as held:
            try:
                held.enter_context(writer_lock(self.path, Part()))
            except StoreLockedError as error:
                raise StoreLockedError(
                    f'another process is writing to this store: {error.owner} ("{self.path}"). '
                    f"Wait until it has {self._work}, then run the same command again to resume.",
                    owner=error.owner,
                ) from None
            self._begin()
            yield

    def is_whole(self) -> bool:
        """Whether every finished shard is as it was written. A half-written one belongs to a
        running process, or to a killed one: the next one to add rows takes it over."""
        return not self.exists() or not self._broken()

    def heal(self) -> int:
        """Finishes what a killed run left, keeps the intact rows of truncated shards, drops what is
        missing; returns the number of lost rows, to be created again."""
        before = read_manifest(self.path).rows
        for number, left_bytes in sorted(self._unfinished().items()):
            what = "completing the data of an interrupted run requires"
            self.refuse_full_disk(left_bytes, what)
            writer = self.open_writer(number)
            if writer.rows:
                add_shard(self.path, writer.finish())
            else:  # nothing of it is intact
                writer.drop()
                with suppress(AccessDeniedError):
                    open_place(self.path).delete(*self._files(number))
        self._forget(self._broken())
        return max(0, before - read_manifest(self.path).rows)

    def open_reader(self) -> StoreReader:
        """The store must exist."""
        return StoreReader(open_folder(self.path, cache_dir=self._cache_dir), max_open=1)

    @contextmanager
    def adding_rows(self) -> "Iterator[RowWriter]":
        """Rows that are written in the block count once it ends. If it ends early, the next run
        takes over what was written."""
        writer = RowWriter(self)
        try:
            yield writer
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def next_shard(self) -> int:
        """The number of the shard to write next: the last one until it is full."""
        manifest = read_manifest(self.path)
        last = max(manifest.shards, key=lambda shard: shard.batch_number, default=None)
        if last is None:
            return 0
        return last.batch_number + int(last.rows >= manifest.rows_per_shard)

    def bytes_to_copy(self) -> int:
        """The bytes that adding the first row also copies: those of the shard that grows."""
        growing = read_manifest(self.path).shard(self.next_shard())
        return 0 if growing is None else growing.bytes

    def refuse_full_disk(self, needed_bytes: int, what: str) -> None:
        """Raises DiskFullError if there is no room for as many more bytes. On its way to a URL, one
        shard lies on this machine, twice. `what` starts the sentence."""
        if isinstance(self.path, UrlPath):
            needed_bytes = 2 * min(needed_bytes, _SHARD_BYTES)
            what = "on their way to a URL, shards may take up to"
            refuse_full_disk(scratch_root(), needed_bytes, what=what, advice=_SCRATCH_ADVICE)
        else:
            refuse_full_disk(self.path, needed_bytes, what=what, advice=self._advice)

    def exists(self) -> bool:
        # Shards without a manifest are not ignored: reading the manifest says what to do.
        return has_manifest(self.path) or bool(open_place(self.path).names("batch_"))

    def _begin(self) -> None:
        if self.exists():
            self.refuse_other(read_manifest(self.path))
            return
        manifest = Manifest(
            kind=self.kind,
            settings={"command": "clew patterns train", **self._identity},
            rows_per_shard=max(1, _SHARD_BYTES // self._row_bytes),
            planned_rows=None,
            clew_version=__version__,
        )
        start_manifest(self.path, manifest)

    def refuse_other(self, manifest: Manifest) -> None:
        found = {name: manifest.settings.get(name) for name in self._identity}
        if (manifest.kind, found) != (self.kind, self._identity):
            raise StoreError(
                f'"{self.path}" contains {manifest.kind} of {_list(found)}, not {self.kind} of '
                f"{_list(self._identity)}: move that folder elsewhere; a new one is created."
            )

    def _unfinished(self) -> dict[int, int]:
        """Shards that are half-written, truncated, or not in the manifest, and their bytes."""
        listed = {shard.file: shard.bytes for shard in read_manifest(self.path).shards}
        found = dict.fromkeys(numbers_with_pieces(self.path), _SHARD_BYTES)
        for name, size in self._sizes().items():
            match = _SHARD_FILE.fullmatch(name)
            if match and (match[2] or listed.get(name) != size):
                found[int(match[1])] = sum(self._files(int(match[1])).values())
        return found

    def _broken(self) -> set[int]:
        """Finished shards that are missing or have another size."""
        shards, sizes = read_manifest(self.path).shards, self._sizes()
        return {s.batch_number for s in shards if sizes.get(s.file) != s.bytes}

    def open_writer(self, number: int) -> ShardWriter:
        schema = describe_in_schema(self.schema, read_manifest(self.path))
        return open_writer(self.path, number, schema, id_column=ID)

    def _files(self, number: int) -> dict[str, int]:
        """A shard with its half-written files, and their sizes."""
        matches = ((_SHARD_FILE.fullmatch(name), size) for name, size in self._sizes().items())
        return {match[0]: size for match, size in matches if match and int(match[1]) == number}

    def _sizes(self) -> dict[str, int]:
        """The sizes of all files."""
        return {name: entry.size for name, entry in open_place(self.path).entries().items()}

    def _forget(self, numbers: set[int]) -> None:
        def forget(manifest: Manifest) -> Manifest:
            kept = tuple(s for s in manifest.shards if s.batch_number not in numbers)
            return replace(manifest, shards=kept)

        if numbers:
            update_manifest(self.path, forget)


def _list(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in settings.items())


class RowWriter:
    """Appends rows, shard after shard. A shard is opened when there is a row for it. On their way
    to a URL, rows wait until they are worth a request: a kill loses those."""

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self._rows_per_shard = read_manifest(store.path).rows_per_shard
        self._writer: ShardWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._batch_bytes = _BATCH_BYTES_AT_URL if isinstance(store.path, UrlPath) else 0

    def write(self, rows: pa.RecordBatch) -> int:
        """Returns the bytes that were written; raises DiskFullError."""
        self._waiting.append(rows)
        is_enough = sum(one.nbytes for one in self._waiting) >= self._batch_bytes
        return self.save() if is_enough else 0

    def save(self) -> int:
        """Write the rows that wait, so that the next run takes them over."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return 0
        return self._write(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))

    def _write(self, rows: pa.RecordBatch) -> int:
        written = 0
        while rows.num_rows:
            writer = self._open()
            before, room = writer.bytes_written, self._rows_per_shard - writer.rows
            writer.write(rows.slice(0, room))
            written += writer.bytes_written - before
            rows = rows.slice(room)
            if writer.rows >= self._rows_per_shard:
                self._finish_shard()
        return written

    def finish(self) -> None:
        """Finish the shard and add it to the manifest: from now on its rows count."""
        self.save()
        self._finish_shard()

    def abandon(self) -> None:
        """Stops early: the next run takes over what was written."""
        if self._writer is not None:
            self._writer.abandon()

    def _finish_shard(self) -> None:
        if self._writer is not None:
            entry: ShardEntry = self._writer.finish()
            add_shard(self._store.path, entry)
            self._writer = None

    def _open(self) -> ShardWriter:
        if self._writer is None:
            self._writer = self._store.open_writer(self._store.next_shard())
        return self._writer


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
