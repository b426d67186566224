"""Write one shard: record batch by record batch into `.part`, then sync and rename.

A `.part` left by a dead process is not lost: its complete record batches are copied into the new
one, and stay safe under `.recovered` while the copy runs. A finished shard that has to grow is
copied too, and stays readable until the longer one takes its place.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.storage.disk import disk_errors
from clew.storage.hashing import checksum_batch
from clew.storage.manifest import ShardEntry, shard_name
from clew.storage.writing import create_file, is_leftover, put_in_place

CHECKSUM_KEY = b"crc32"
_MAGIC_BYTES = 8
_HASH_ASIDE_BYTES = 1 << 20


class ShardWriter:
    """Writes `batch_NNNN.arrow`, taking over the intact rows of an earlier, interrupted attempt.

    `recovered_ids` holds the `id_column` of those rows: they need not be created again.
    """

    def __init__(
        self, store: Path, batch_number: int, schema: pa.Schema, *, id_column: str
    ) -> None:
        self.path = store / shard_name(batch_number)
        self.batch_number = batch_number
        self.schema = schema
        self.rows = 0
        self.recovered_ids: set[int] = set()
        self._id_column = id_column
        self._aside = self.path.with_suffix(".arrow.recovered")
        self._part = self.path.with_suffix(".arrow.part")
        self._set_old_rows_aside()
        self._sink = _HashingFile(self._part)
        self._ipc = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema)
        self._take_over_old_rows()

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends one record batch; it is on its way to the disk when this returns."""
        checksum = str(checksum_batch(batch)).encode()
        with disk_errors(self.path.parent):
            self._ipc.write_batch(batch, custom_metadata={CHECKSUM_KEY: checksum})
            self._sink.flush()
        self.rows += batch.num_rows

    @property
    def bytes_written(self) -> int:
        return self._sink.size

    def finish(self) -> ShardEntry:
        """Closes, syncs and renames. After this the shard exists for readers."""
        with disk_errors(self.path.parent):
            self._ipc.close()
            self._sink.sync()
            self._sink.close()
            put_in_place(self._part, self.path)
        return ShardEntry(
            batch_number=self.batch_number,
            file=self.path.name,
            rows=self.rows,
            bytes=self._sink.size,
            sha256=self._sink.hexdigest(),
        )

    def abandon(self) -> None:
        """Stops without finishing: what was written stays in `.part` for the next attempt."""
        with contextlib.suppress(OSError):  # a full disk, which `write` has already reported
            self._sink.close()

    def _set_old_rows_aside(self) -> None:
        safe = is_leftover(self._aside)
        if is_leftover(self._part):
            # Unlinked, not truncated: it may be a second name of another file.
            self._part.unlink() if safe else self._part.replace(self._aside)

    def _take_over_old_rows(self) -> None:
        for old in (self.path, self._aside):
            if old.exists():
                self._copy_new_rows(old)
        with disk_errors(self.path.parent):
            self._sink.sync()
        self._aside.unlink(missing_ok=True)

    def _copy_new_rows(self, old: Path) -> None:
        for batch in read_intact_batches(old, self.schema):
            ids = batch.column(self._id_column).to_pylist()
            fresh = [row for row, i in enumerate(ids) if i not in self.recovered_ids]
            if fresh:
                self.write(batch if len(fresh) == len(ids) else batch.take(pa.array(fresh)))
                self.recovered_ids.update(ids)


def read_intact_batches(path: Path, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """The leading record batches of a shard or `.part` that are complete and undamaged.

    Works without the file's footer. Damaged batches are skipped while the file still says where the
    next one starts; reading ends where it does not.
    """
    if path.stat().st_size <= _MAGIC_BYTES:
        return
    with pa.memory_map(str(path)) as mapped:
        content = mapped.read_buffer()
        try:
            stream = pa.ipc.open_stream(content.slice(_MAGIC_BYTES))
        except (pa.ArrowException, OSError, ValueError):
            return
        if schema is not None and stream.schema != schema:
            return
        while True:
            try:
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                intact = _is_intact(batch, metadata)
            except (StopIteration, pa.ArrowException, OSError, ValueError):
                return
            if intact:
                yield batch


def _is_intact(batch: pa.RecordBatch, metadata: Any) -> bool:
    try:
        batch.validate(full=True)
        expected = (metadata or {}).get(CHECKSUM_KEY)
        return expected is not None and int(expected) == checksum_batch(batch)
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

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._hasher.shutdown()
        self._file.close()
