"""Write a shard of a store at a URL: assembled on this machine, put in one step, then listed.

Each record batch is also put under `.work/` as soon as it is written, where nobody reads it as a
shard: whoever continues takes over what a killed writer finished there.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from clew.base.errors import StoreError
from clew.base.urls import UrlPath
from clew.storage.leases import WORK_FOLDER
from clew.storage.manifest import ShardEntry, shard_name
from clew.storage.place import AccessDeniedError, ChangedError, Place
from clew.storage.places import open_place
from clew.storage.reader import ShardReader
from clew.storage.reading import hash_file
from clew.storage.working_copy import ScratchFolder
from clew.storage.writer import ShardWriter, read_intact_batches
from clew.storage.writing import replace_file

logger = logging.getLogger(__name__)

_PIECES_OF = re.compile(r"batch_(\d{4,12})", re.ASCII)
_TRIES = 5
_MAX_SIDE_BYTES = 1 << 32


def open_writer(
    store: Path, batch_number: int, schema: pa.Schema, *, id_column: str, start_over: bool = False
) -> ShardWriter:
    """A writer for a shard of a store in a folder or at a URL."""
    kind = UploadingWriter if isinstance(store, UrlPath) else ShardWriter
    return kind(store, batch_number, schema, id_column=id_column, start_over=start_over)


def unfinished_pieces(store: Path, batch_number: int) -> Place:
    """Where the record batches of a shard that is not finished lie."""
    return open_place(store).child(WORK_FOLDER).child(Path(shard_name(batch_number)).stem)


def numbers_with_pieces(store: Path) -> list[int]:
    """The shards of a store at a URL that have record batches under `.work/`."""
    if not isinstance(store, UrlPath):
        return []
    folders = open_place(store).child(WORK_FOLDER).folders()
    found = (_PIECES_OF.fullmatch(name) for name in folders)
    return [int(match[1]) for match in found if match]


def remove_leftovers(store: Path, finished: Collection[int]) -> None:
    """Removes the record batches of shards that are finished, which a process that was killed
    right after it had listed them left."""
    for number in numbers_with_pieces(store):
        if number in finished:
            _delete_all(unfinished_pieces(store, number))


def _delete_all(place: Place) -> None:
    """Without the permission to delete, what is no longer needed stays. Nobody reads it."""
    try:
        place.delete(*place.names())
    except AccessDeniedError as error:
        logger.info("%s", error)


def write_side_file(store: Path, name: str, content: bytes) -> str:
    """Writes a file beside the shards, which the manifest is about to list; returns the SHA-256 of
    what is there. At a URL, one that another process put there is kept."""
    if not isinstance(store, UrlPath):
        replace_file(store / name, content)
    elif not open_place(store).create(name, content):
        content = open_place(store).read(name, _MAX_SIDE_BYTES).data
    return hashlib.sha256(content).hexdigest()


class UploadingWriter(ShardWriter):
    """A `ShardWriter` for a store at a URL. Takes scratch space for two copies of the shard."""

    def __init__(
        self,
        store: Path,
        batch_number: int,
        schema: pa.Schema,
        *,
        id_column: str,
        start_over: bool = False,
    ) -> None:
        self.store, self._place = store, open_place(store)
        self._work = unfinished_pieces(store, batch_number)
        self._starts_over = start_over
        self._next_piece, self._keeps_pieces = 0, False
        self._scratch = ScratchFolder()
        try:
            if not start_over:
                self._fetch(self._place, shard_name(batch_number), shard_name(batch_number))
            super().__init__(
                self._scratch.path,
                batch_number,
                schema,
                id_column=id_column,
                start_over=start_over,
            )
        except BaseException:
            self._scratch.remove()
            raise
        # Writing a shard again that starts over takes as long as fetching its pieces.
        self._keeps_pieces = not start_over

    def upload(self, entry: ShardEntry, *, grows: bool) -> ShardEntry:
        """Puts the complete file, and returns the entry of what lies there now: another worker may
        have put the same rows, and may already list them. One that `grows` replaces the shorter."""
        for _ in range(_TRIES):
            if self._place.create(entry.file, self.part):
                return entry
            found = self._place.stat(entry.file)
            if found is None:
                continue
            other = None if grows else self._describe_other(entry)
            if other is not None:
                return other
            with suppress(ChangedError):
                self._place.replace(entry.file, self.part, found.version)
                return entry
        raise ChangedError(
            f"{entry.file} in {self.store} is being replaced by other processes: make sure that "
            "only clew writes there, then run the same command again."
        )

    def put_in_place(self) -> None:
        """Puts the complete file, whatever has its name."""
        self._place.replace(self.path.name, self.part, None)
        self.clear()

    def clear(self) -> None:
        """Removes what the shard was made from, here and under `.work/`."""
        self.abandon()
        _delete_all(self._work)

    def drop(self) -> None:
        self.clear()

    def abandon(self) -> None:
        super().abandon()
        self._scratch.remove()

    def _fetch(self, place: Place, name: str, into: str) -> Path:
        path = self._scratch.path / into
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            place.fetch(name, path)
        return path

    def _old_files(self) -> Iterator[Path]:
        """One at a time: beside the new file, they take the space of one shard."""
        yield self.path
        self.path.unlink(missing_ok=True)
        pieces = () if self._starts_over else self._work.names()
        for number, name in enumerate(pieces):
            path = self._fetch(self._work, name, f"{number}.piece")
            yield path
            path.unlink(missing_ok=True)
            self._next_piece = number + 1

    def _shown(self, path: Path) -> Path:
        return self.store / path.name

    def _written(self, batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> None:
        if not self._keeps_pieces:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.schema) as file:
            file.write_batch(batch, custom_metadata=metadata)
        name = f"{self._next_piece:06d}-{secrets.token_hex(4)}.part"
        self._work.create(name, sink.getvalue().to_pybytes())
        self._next_piece += 1

    def _describe_other(self, entry: ShardEntry) -> ShardEntry | None:
        """The entry of the shard that has this one's name, if it has the same rows, all intact.
        A worker that died before it could list it, or is about to, has put it there."""
        path = self._fetch(self._place, entry.file, "other")
        if not path.exists() or not self._has_same_rows(path):
            return None
        return replace(entry, bytes=path.stat().st_size, sha256=hash_file(path))

    def _has_same_rows(self, path: Path) -> bool:
        try:
            ours, theirs = (ShardReader(one).read_ids(self._id_column) for one in (self.part, path))
        except StoreError:
            return False
        intact = sum(batch.num_rows for batch in read_intact_batches(path, self.schema))
        return intact == len(theirs) and {*ours.tolist()} == {*theirs.tolist()}
