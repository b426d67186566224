"""The store of decoded photos: its rows, and how it is created, repaired and extended.

A row is one image: the square itself, a digest of it, and the file in which it was first seen.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from clew.errors import StoreError, StoreLockedError
from clew.patterns.cache.contents import Contents, Ledger, read_contents
from clew.storage import (
    Manifest,
    Part,
    ShardEntry,
    ShardWriter,
    StoreReader,
    add_shard,
    read_manifest,
    shard_name,
    writer_lock,
)
from clew.storage.disk import refuse_full_disk
from clew.storage.manifest import (
    MANIFEST_NAME,
    update_manifest,
    write_manifest,
)
from clew.storage.origin import describe_in_schema
from clew.version import __version__

KIND = "photos"
CHANNELS = 3
ROOM_ADVICE = "Free some space and run the same command again, or choose a smaller `image_size`."
_ID = "global_example_id"
# Changes when photos are turned into squares differently: old squares would not match new ones.
_METHOD = "whole photo, squashed"
# Small enough to be copied quickly when it grows, large enough for few files.
_SHARD_BYTES = 128 << 20
_SHARD_FILE = re.compile(r"batch_(\d+)\.arrow(\.part|\.recovered)?")


def image_bytes(size: int) -> int:
    return size * size * CHANNELS


def image_schema(size: int) -> pa.Schema:
    numbers = {"file_bytes": pa.int64(), "modified_ns": pa.int64()}
    sides = {"width": pa.int32(), "height": pa.int32()}
    columns = {_ID: pa.int64(), "name": pa.string(), **numbers, "digest": pa.string(), **sides}
    columns["image"] = pa.list_(pa.uint8(), image_bytes(size))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


class ImageStore:
    """The store of one size. Reading it changes nothing; `heal` and `add_rows` require the lock."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.ledger = Ledger(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store's lock; raises StoreLockedError if another process is adding to it."""
        with ExitStack() as held:
            try:
                held.enter_context(writer_lock(self.path, Part()))
            except StoreLockedError as error:
                raise self._explain_lock(error) from None
            self._begin()
            yield

    def read(self) -> Contents:
        """Read the contents of the store. Raises StoreError if the folder holds something else."""
        if not self._exists():
            return read_contents(None, ())
        self._refuse_other(read_manifest(self.path))
        return read_contents(StoreReader(self.path, max_open=1), self.ledger.read())

    def is_whole(self) -> bool:
        """Whether every finished shard is as it was written. A half-written one belongs to a
        running process, or to a killed one: the next one to add rows takes it over."""
        return not self._exists() or not self._broken()

    def heal(self) -> int:
        """Finishes what a killed run left, keeps the intact rows of truncated shards, drops what is
        missing; returns the number of lost rows, to be created again."""
        before = read_manifest(self.path).rows
        for number in sorted(self._unfinished()):
            left = sum(path.stat().st_size for path in self._files(number))
            what = "completing the data of an interrupted run requires"
            refuse_full_disk(self.path, left, what=what, advice=ROOM_ADVICE)
            writer = self.open_writer(number)
            if writer.rows:
                add_shard(self.path, writer.finish())
            else:
                self._drop(writer)
        self._forget(self._broken())
        return max(0, before - read_manifest(self.path).rows)

    def add_rows(self) -> "RowWriter":
        return RowWriter(self)

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

    def _explain_lock(self, error: StoreLockedError) -> StoreLockedError:
        return StoreLockedError(
            f'another process is writing to this store: {error.owner} ("{self.path}"). Wait '
            "until it has read the photos, then run the same command again to resume.",
            owner=error.owner,
        )

    def _exists(self) -> bool:
        # Shards without a manifest are not ignored: reading the manifest says what to do.
        return (self.path / MANIFEST_NAME).exists() or any(self.path.glob("batch_*.arrow*"))

    def _begin(self) -> None:
        if self._exists():
            self._refuse_other(read_manifest(self.path))
            return
        manifest = Manifest(
            kind=KIND,
            settings={"command": "clew patterns train", "size": self.size, "method": _METHOD},
            rows_per_shard=max(1, _SHARD_BYTES // image_bytes(self.size)),
            planned_rows=None,
            clew_version=__version__,
        )
        write_manifest(self.path, manifest)

    def _refuse_other(self, manifest: Manifest) -> None:
        found = (manifest.kind, manifest.settings.get("size"), manifest.settings.get("method"))
        if found != (KIND, self.size, _METHOD):
            raise StoreError(
                f'"{self.path}" contains {found[0]} of size {found[1]} ("{found[2]}"), not photos '
                f'of size {self.size} ("{_METHOD}"): move that folder elsewhere; a new one is '
                "created."
            )

    def _unfinished(self) -> set[int]:
        """Shards that are half-written, truncated, or not in the manifest."""
        listed = {shard.file: shard.bytes for shard in read_manifest(self.path).shards}
        numbers = set()
        for path in self.path.glob("batch_*.arrow*"):
            match = _SHARD_FILE.fullmatch(path.name)
            if match and (match[2] or listed.get(path.name) != _size(path)):
                numbers.add(int(match[1]))
        return numbers

    def _broken(self) -> set[int]:
        """Finished shards that are missing or have another size."""
        shards = read_manifest(self.path).shards
        return {s.batch_number for s in shards if _size(self.path / s.file) != s.bytes}

    def open_writer(self, number: int) -> ShardWriter:
        schema = describe_in_schema(image_schema(self.size), read_manifest(self.path))
        return ShardWriter(self.path, number, schema, id_column=_ID)

    def _drop(self, writer: ShardWriter) -> None:
        """Delete a shard of which nothing is intact."""
        writer.abandon()
        for path in self._files(writer.batch_number):
            path.unlink()

    def _files(self, number: int) -> list[Path]:
        """A shard with its half-written files."""
        names = (f"{shard_name(number)}{ending}" for ending in ("", ".part", ".recovered"))
        return [self.path / name for name in names if (self.path / name).exists()]

    def _forget(self, numbers: set[int]) -> None:
        def forget(manifest: Manifest) -> Manifest:
            kept = tuple(s for s in manifest.shards if s.batch_number not in numbers)
            return replace(manifest, shards=kept)

        if numbers:
            update_manifest(self.path, forget)


def _size(path: Path) -> int | None:
    """The size of a file; None if there is none, or something else has its name."""
    return path.stat().st_size if path.is_file() else None


class RowWriter:
    """Appends rows, shard after shard. A shard is opened when there is a row for it."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._rows_per_shard = read_manifest(store.path).rows_per_shard
        self._writer: ShardWriter | None = None

    def write(self, rows: pa.RecordBatch) -> int:
        """Returns the bytes that were written; raises DiskFullError."""
        written = 0
        while rows.num_rows:
            writer = self._open()
            before, room = writer.bytes_written, self._rows_per_shard - writer.rows
            writer.write(rows.slice(0, room))
            written += writer.bytes_written - before
            rows = rows.slice(room)
            if writer.rows >= self._rows_per_shard:
                self.finish()
        return written

    def finish(self) -> None:
        """Finish the shard and add it to the manifest: from now on its rows count."""
        if self._writer is not None:
            entry: ShardEntry = self._writer.finish()
            add_shard(self._store.path, entry)
            self._writer = None

    def abandon(self) -> None:
        """Stops early: the next run takes over what was written."""
        if self._writer is not None:
            self._writer.abandon()

    def _open(self) -> ShardWriter:
        if self._writer is None:
            self._writer = self._store.open_writer(self._store.next_shard())
        return self._writer
