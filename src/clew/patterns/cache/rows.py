"""A store of rows that grows: how it is created, repaired and extended. Reading it changes nothing;
`heal` and `adding_rows` require the lock."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from clew.base.errors import StoreError, StoreLockedError
from clew.base.urls import UrlPath
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
from clew.storage.repair import add_shard
from clew.storage.uploading import numbers_with_pieces, open_writer
from clew.storage.working_copy import scratch_root
from clew.storage.writer import ShardWriter
from clew.storage.writing import refuse_full_disk
from clew.version import __version__

ID = "global_example_id"
# Small enough to be copied quickly when it grows, large enough for few files.
_SHARD_BYTES = 128 << 20
# A record batch that goes to a URL is at least this large: each takes a request.
_BATCH_BYTES_AT_URL = 4 << 20
_SCRATCH_ADVICE = "Free some space, or set TMPDIR to a folder on a larger disk."
_SHARD_FILE = re.compile(r"batch_(\d+)\.arrow(\.part|\.recovered)?")


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
                raise self._explain_lock(error) from None
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
            else:
                self._drop(writer)
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

    def _explain_lock(self, error: StoreLockedError) -> StoreLockedError:
        return StoreLockedError(
            f'another process is writing to this store: {error.owner} ("{self.path}"). Wait '
            f"until it has {self._work}, then run the same command again to resume.",
            owner=error.owner,
        )

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

    def _drop(self, writer: ShardWriter) -> None:
        """Delete a shard of which nothing is intact."""
        writer.drop()
        with suppress(AccessDeniedError):
            open_place(self.path).delete(*self._files(writer.batch_number))

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
