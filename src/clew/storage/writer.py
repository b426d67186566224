"""Write one shard: record batch by record batch into `.part`, then sync and rename.

A `.part` left by a dead process is not lost: its complete record batches are copied into the new
one, and stay safe under `.recovered` while the copy runs. A finished shard that has to grow is
copied too, and stays readable until the longer one takes its place.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.storage.arrow import (
    ARROW_ERRORS,
    MAGIC,
    check_batch,
    check_stream,
    check_types,
    describe_batch,
    has_checksum,
    map_file,
)
from clew.storage.manifest import Manifest, ShardEntry, manifest_lock, shard_name
from clew.storage.origin import (
    find_foreign,
    find_foreign_ids,
    foreign_error,
    number_in_schema,
    read_origin,
)
from clew.storage.reading import irregular_kind, open_regular
from clew.storage.writing import create_file, disk_errors, is_leftover, put_in_place

_MAGIC_BYTES = len(MAGIC)
_HASH_ASIDE_BYTES = 1 << 20


class ShardWriter:
    """Writes `batch_NNNN.arrow`, taking over the intact rows of an earlier, interrupted attempt.

    `recovered_ids` holds the `id_column` of those rows: they need not be created again. With
    `start_over` what was there is dropped instead. Raises StoreError, before anything is changed,
    if what is there belongs to another store or number, or is not a file.
    """

    def __init__(
        self,
        store: Path,
        batch_number: int,
        schema: pa.Schema,
        *,
        id_column: str,
        start_over: bool = False,
    ) -> None:
        self.path = store / shard_name(batch_number)
        self.batch_number = batch_number
        self.schema = number_in_schema(schema, batch_number)
        self._origin = read_origin(self.schema)
        self.rows = 0
        self.recovered_ids: set[int] = set()
        self._id_column = id_column
        self._aside = self.path.with_suffix(".arrow.recovered")
        self._part = self.path.with_suffix(".arrow.part")
        self._refuse_foreign_files(start_over)
        # One worker may take a shard over from another that was only slow.
        with manifest_lock(store):
            if start_over:
                for old in (self.path, self._part, self._aside):
                    old.unlink(missing_ok=True)
            self._set_old_rows_aside()
            self._sink = _HashingFile(self._part)
        self._ipc = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), self.schema)
        try:
            self._take_over_old_rows()
        except BaseException:
            self.abandon()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends one record batch; it is on its way to the disk when this returns."""
        metadata = describe_batch(batch)
        with disk_errors(self.path.parent):
            self._ipc.write_batch(batch, custom_metadata=metadata)
            self._sink.flush()
        self.rows += batch.num_rows
        self._written(batch, metadata)

    @property
    def bytes_written(self) -> int:
        return self._sink.size

    def finish(self) -> ShardEntry:
        """Closes, syncs and renames. After this the shard exists for readers."""
        entry = self.complete()
        self.put_in_place()
        return entry

    @property
    def part(self) -> Path:
        """The file that is written to. Once it is complete, it can be read as the shard can."""
        return self._part

    @property
    def is_current(self) -> bool:
        """Whether no other process has taken the shard over. It stays so while the lock of the
        manifest is held."""
        return self._sink.has_name(self._part)

    def complete(self) -> ShardEntry:
        """Writes the end of the file and syncs it; returns the shard's entry in the manifest."""
        with disk_errors(self.path.parent):
            self._ipc.close()
            self._sink.sync()
        return ShardEntry(
            batch_number=self.batch_number,
            file=self.path.name,
            rows=self.rows,
            bytes=self._sink.size,
            sha256=self._sink.hexdigest(),
        )

    def put_in_place(self) -> None:
        """Renames the complete file."""
        with disk_errors(self.path.parent):
            put_in_place(self._part, self.path)
            self._sink.close()

    def drop(self) -> None:
        """Removes what was written: another worker has finished the shard."""
        if self.is_current:
            self._part.unlink(missing_ok=True)
        self.abandon()

    def abandon(self) -> None:
        """Stops without finishing: what was written stays in `.part` for the next attempt."""
        with contextlib.suppress(OSError):  # a full disk, which `write` has already reported
            self._sink.close()

    def _refuse_foreign_files(self, start_over: bool) -> None:
        manifest = self._origin.manifest if self._origin else None
        if manifest is not None and start_over and "sources" in manifest.settings:
            # What is dropped may have been made from an earlier version of its source.
            manifest = replace(manifest, settings={**manifest.settings, "sources": []})
        for old in (self.path, self._part, self._aside):
            reason = describe_irregular(old)
            if reason is None and manifest is not None and old.exists():
                reason = find_foreign_file(old, manifest, self.batch_number)
            if reason is not None:
                raise foreign_error(self._shown(old), reason)

    def _set_old_rows_aside(self) -> None:
        safe = is_leftover(self._aside)
        if is_leftover(self._part):
            # Unlinked, not truncated: it may be a second name of another file.
            self._part.unlink() if safe else self._part.replace(self._aside)

    def _written(self, batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> None:
        """Called with each record batch that was written, and the metadata that it has."""

    def _shown(self, path: Path) -> Path:
        """The name of a file in messages."""
        return path

    def _old_files(self) -> Iterator[Path]:
        """Those that may have rows of an earlier attempt, the first ones first."""
        yield from (self.path, self._aside)

    def _take_over_old_rows(self) -> None:
        for old in self._old_files():
            if old.exists():
                self._copy_new_rows(old)
        with disk_errors(self.path.parent):
            self._sink.sync()
        self._aside.unlink(missing_ok=True)

    def _copy_new_rows(self, old: Path) -> None:
        for batch in read_intact_batches(old, self.schema):
            ids = self._read_ids(old, batch)
            fresh = [row for row, i in enumerate(ids) if i not in self.recovered_ids]
            if fresh:
                self.write(batch if len(fresh) == len(ids) else batch.take(pa.array(fresh)))
                self.recovered_ids.update(ids)

    def _read_ids(self, old: Path, batch: pa.RecordBatch) -> list[int]:
        ids = batch.column(self._id_column)
        if self._origin is not None:
            reason = find_foreign_ids(ids.to_numpy(), self._origin.manifest, self.batch_number)
            if reason is not None:
                raise foreign_error(self._shown(old), reason)
        return ids.to_pylist()


def describe_irregular(path: Path) -> str | None:
    """Why this cannot be a shard ("is a folder, not a file"), None if it is a file or missing. A
    finished shard may be a link to a file; what is written to may not."""
    kind = irregular_kind(path, follow_links=path.suffix == ".arrow")
    return None if kind is None else f"is {kind}, not a file"


def find_foreign_file(
    path: Path, manifest: Manifest, batch_number: int, *, listed: bool = False
) -> str | None:
    """Why a file is not shard `batch_number` of the store or a half-written one, None if it is.
    `listed` says whether the manifest lists it. A shard too damaged to tell is not foreign."""
    schema = read_schema(path)
    if schema is not None:
        return find_foreign(schema, manifest, batch_number, listed=listed)
    with open_regular(path) as file:
        start = file.read(_MAGIC_BYTES)
    # A power cut may leave zeros.
    is_ours = MAGIC.startswith(start) or not any(start)
    return None if is_ours else "is not an Arrow file"


def read_schema(path: Path) -> pa.Schema | None:
    """The schema at the beginning of a shard, finished or not; None if it cannot be read."""
    if path.stat().st_size <= _MAGIC_BYTES:
        return None
    with map_file(path) as mapped:
        try:
            return pa.ipc.open_stream(mapped.read_buffer().slice(_MAGIC_BYTES)).schema
        except ARROW_ERRORS:
            return None


def read_intact_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The leading record batches of a shard or `.part` that are complete and undamaged.

    Works without the file's footer. Damaged batches are skipped while the file still says where the
    next one starts; reading ends where it does not.
    """
    if path.stat().st_size <= _MAGIC_BYTES:
        return
    with map_file(path) as mapped:
        content = mapped.read_buffer().slice(_MAGIC_BYTES)
        try:
            stream = pa.ipc.open_stream(content)
            check_types(stream.schema)
        except ARROW_ERRORS:
            return
        if schema is not None and stream.schema != schema:
            return
        headers = check_stream(content)
        while True:
            try:
                next(headers)
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                intact = _is_intact(batch, metadata)
            except (StopIteration, *ARROW_ERRORS):
                return
            if intact:
                yield batch


def _is_intact(batch: pa.RecordBatch, metadata: Any) -> bool:
    try:
        check_batch(batch)
        return has_checksum(batch, metadata) is True
    except (pa.ArrowException, ValueError):
        return False


class _HashingFile:
    """A file that tracks the SHA-256 and the length of what is written through it."""

    def __init__(self, path: Path) -> None:
        self._file = create_file(path)
        self._digest = hashlib.sha256()
        # Hashing and writing take about equally long: large pieces do both at once.
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clew-hash")
        self.size = 0

    def write(self, content: bytes) -> int:
        hashed = None
        if len(content) > _HASH_ASIDE_BYTES:
            hashed = self._hasher.submit(self._digest.update, content)
        else:
            self._digest.update(content)
        try:
            written = self._file.write(content)
        finally:
            if hashed is not None:
                hashed.result()
        self.size += written
        return written

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def has_name(self, path: Path) -> bool:
        """Whether this is the file with that name."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.lstat(path))
        return False

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._hasher.shutdown()
        self._file.close()
