"""The shards of stores at URLs that lie on this machine: downloaded once for all its processes, and
ahead; checked; the least recently used removed first. What a process holds is never removed."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from clew.base.errors import ClewError, StoreError
from clew.base.texts import bytes_text
from clew.base.typed_json import Bounds, read_as
from clew.storage.manifest import Sha256, ShardEntry
from clew.storage.mirror import _REFUSED, MirrorFolder, read_limit, writing_to
from clew.storage.place import download
from clew.storage.reading import hash_file, read_json
from clew.storage.writing import lock_file, open_no_link

logger = logging.getLogger(__name__)

_TRIES = 100  # each ends with the work of another process, or with a shard that was removed
_PATIENCE_SECONDS, _PAUSE_SECONDS = 30.0, 0.02
_MAX_RECORD_BYTES = 10_000
_PART = ".part"
_SHARD_NAME = re.compile(r"batch_\d{4,12}\.arrow", re.ASCII)
_PART_NAME = re.compile(rf"\.{_SHARD_NAME.pattern}{re.escape(_PART)}", re.ASCII)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_Number = Annotated[int, Bounds(least=0, most=(1 << 63) - 1)]


# While the end of one shard is hashed, the next one is on its way.
_SHARDS_AT_ONCE = 2
_SHARE_OF_CACHE = 0.25


class CacheFullError(StoreError):
    """The cache has no room for a shard: all of it is in use."""


class CacheTooSmallError(StoreError):
    """The cache could not even hold a single shard."""


class Hold:
    """A shard in the cache. As long as this object lives, no process removes it: it has the file
    open under a shared lock, which the kernel releases when the process dies."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path, self.number = path, -1
        self.number = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # kept until the very end
        if self.number >= 0:
            close(self.number)

    def is_at(self, path: Path) -> bool:
        """Whether this file is still the one that has this name."""
        try:
            return os.path.samestat(os.lstat(path), os.fstat(self.number))
        except FileNotFoundError:
            return False


class _Record(TypedDict):
    """What was downloaded and checked: the content, and the file that had it. `changed_ns` is when
    the kernel last saw the file change, which no program can set back; the record's own date is
    when the shard was last used. Nothing is synced to the disk, so what was checked before the
    machine restarted is checked again."""

    sha256: Sha256
    inode: _Number
    changed_ns: _Number
    boot: str


def hold_shard(store: Path, entry: ShardEntry, let_go: Callable[[], None] | None) -> Hold | None:
    """Holds a shard of a mirrored store, downloaded if it is not there; None for any other store.
    If there is no room, what the caller can `let_go` may make some, and others are waited for; with
    None, that is left to others.

    Raises StoreError if the shard is missing or damaged at its URL, or the server does not answer;
    CacheFullError if there is no room; InputError and DiskFullError if the cache cannot be written.
    """
    if not isinstance(store, MirrorFolder):
        return None
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return _hold(store, entry)
        except CacheFullError:
            if let_go is None or time.monotonic() > deadline:
                raise
            let_go()
        time.sleep(_PAUSE_SECONDS)


def _hold(store: MirrorFolder, entry: ShardEntry) -> Hold:
    with writing_to(store.cache_dir):
        store.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            found = _take(store / entry.file, entry) or _fetch(store, entry)
            if found is not None:
                return found
    raise _full(store.cache_dir, "the shards in it are removed as fast as they come")


def is_cached(store: MirrorFolder, entry: ShardEntry) -> bool:
    """Whether the whole shard is here."""
    try:
        return os.stat(store / entry.file).st_size == entry.bytes
    except FileNotFoundError:
        return False


def _take(path: Path, entry: ShardEntry) -> Hold | None:
    """The shard, if it is there and intact."""
    try:
        hold = Hold(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(hold.number, fcntl.LOCK_SH)
    if os.fstat(hold.number).st_size != entry.bytes or not _is_checked(path, hold, entry.sha256):
        return None
    if not hold.is_at(path):  # removed meanwhile
        return None
    with suppress(OSError):  # of another user, in a folder that both may read
        os.utime(_record_of(path))
    return hold


def _fetch(store: MirrorFolder, entry: ShardEntry) -> Hold | None:
    """Downloads the shard, unless another process is at it: then waits until that has ended, and
    returns None. What a killed process left is overwritten."""
    right, path = _create_locked(store / f".{entry.file}.lock"), store / entry.file
    if right is None:
        return None
    try:
        found = _take(path, entry)  # of a process that has ended its work meanwhile
        if found is None and path.exists():
            logger.info("%s has changed in the cache: it is downloaded again", path)
            path.unlink(missing_ok=True)
        return found or _download(store, entry)
    finally:
        right.path.unlink(missing_ok=True)


def _download(store: MirrorFolder, entry: ShardEntry) -> Hold | None:
    path = store / entry.file
    part = store / f".{entry.file}{_PART}"
    hold = _create_locked(part)
    if hold is None:
        return None
    try:
        _reserve(store.cache_dir, hold.number, entry.bytes)
        _fill(store, entry, hold.number)
        # Before and after the rename, which changes the file: it is known as downloaded throughout.
        _write_record(path, os.fstat(hold.number), entry.sha256)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _write_record(path, os.fstat(hold.number), entry.sha256)
    fcntl.flock(hold.number, fcntl.LOCK_SH)
    hold.path = path
    return hold if hold.is_at(path) else None


def _create_locked(path: Path) -> Hold | None:
    """A file under a lock of its own; None if another process removed or renamed it meanwhile."""
    hold = Hold(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(hold.number, fcntl.LOCK_EX)
    return hold if hold.is_at(path) else None


def _fill(store: MirrorFolder, entry: ShardEntry, descriptor: int) -> None:
    """A second try for what was damaged on its way."""
    for _ in range(2):
        try:
            found = download(store.place, entry.file, entry.bytes, descriptor)
        except FileNotFoundError:
            raise _damaged(store, f"shard {entry.file} is missing from {store}") from None
        except EOFError:
            raise _damaged(
                store,
                f"shard {entry.file} in {store} has fewer than the {entry.bytes:,} bytes that the "
                "manifest says",
            ) from None
        if found == entry.sha256:
            return
    raise _damaged(store, f"shard {entry.file} in {store} has changed content (SHA-256 mismatch)")


def _damaged(store: MirrorFolder, text: str) -> StoreError:
    return StoreError(text, action="repair", store=store)


def _reserve(cache_dir: Path, descriptor: int, size: int) -> None:
    """Makes room, and gives the file its size: others count it from now on."""
    limit = read_limit(cache_dir)
    if size > limit:
        raise CacheTooSmallError(_full(cache_dir, f"a shard takes {bytes_text(size)}").text)
    with lock_file(cache_dir / ".lock"):
        os.ftruncate(descriptor, 0)
        files = sorted(_list_files(cache_dir), key=lambda one: (not one.is_part, one.used))
        over = sum(one.size for one in files) + size - limit
        for one in files:
            if over <= 0:
                break
            if _remove(one.path):
                over -= one.size
        if over > 0:
            raise _full(cache_dir, "other shards in it are in use")
        os.ftruncate(descriptor, size)


class _File(NamedTuple):
    used: float
    size: int
    path: Path

    @property
    def is_part(self) -> bool:
        return _PART_NAME.fullmatch(self.path.name) is not None


def _list_files(folder: Path) -> Iterator[_File]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                found = path.lstat()
                yield _File(_last_used(path, found), found.st_size, path)


def _last_used(path: Path, found: os.stat_result) -> float:
    try:
        return _record_of(path).lstat().st_mtime
    except FileNotFoundError:
        return found.st_mtime


def _remove(path: Path) -> bool:
    """Removes a shard that was downloaded, or what is left of a download, unless a process holds
    it. Any other file stays."""
    if not (_SHARD_NAME.fullmatch(path.name) or _PART_NAME.fullmatch(path.name)):
        return False
    try:
        hold = Hold(path, os.O_RDWR)
        fcntl.flock(hold.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if hold.is_at(path):
            if not _is_downloaded(path, os.fstat(hold.number)):
                return False
            path.unlink()
            _record_of(path).unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except OSError as error:  # held, or not ours to open
        if error.errno in (errno.EWOULDBLOCK, errno.ELOOP, *_REFUSED):
            return False
        raise
    return True


def _is_downloaded(path: Path, found: os.stat_result) -> bool:
    """Whether clew put the file there: its record names this file or, after the cache was copied,
    its content."""
    if _PART_NAME.fullmatch(path.name):
        return True
    record = _read_record(path)
    return record is not None and (
        record["inode"] == found.st_ino or record["sha256"] == hash_file(path)
    )


def _is_checked(path: Path, hold: Hold, sha256: str) -> bool:
    found = os.fstat(hold.number)
    if _read_record(path) == _describe(found, sha256):
        return True
    with open(hold.number, "rb", closefd=False) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return False
    _write_record(path, found, sha256)
    return True


def _read_record(path: Path) -> _Record | None:
    try:
        return read_as(_Record, read_json(_record_of(path), max_bytes=_MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return None


def _write_record(path: Path, found: os.stat_result, sha256: str) -> None:
    """In one write, and not synced: what is half-written is not a record."""
    with open(_record_of(path), "wb", opener=open_no_link) as file:
        file.write(json.dumps(_describe(found, sha256)).encode())


def _describe(found: os.stat_result, sha256: str) -> _Record:
    return _Record(sha256=sha256, inode=found.st_ino, changed_ns=found.st_ctime_ns, boot=_boot_id())


def _boot_id() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _record_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def _full(cache_dir: Path, reason: str) -> CacheFullError:
    limit = bytes_text(read_limit(cache_dir))
    return CacheFullError(
        f'the cache "{cache_dir}" may take {limit}, but {reason}: give a larger `cache_size`.'
    )


def read_ahead(store: Path, shards: Sequence[ShardEntry]) -> "ReadAhead | None":
    """Starts to download the shards in this order; None if the store is on this machine."""
    if not isinstance(store, MirrorFolder) or not shards:
        return None
    return ReadAhead(store, shards)


class ReadAhead:
    """Stays at most a quarter of the cache ahead of the last shard that was `reached`, so that
    nothing is removed before it was used. Errors are left to the reader, who needs the shard. Ends
    with the last reference to it."""

    def __init__(self, store: MirrorFolder, shards: Sequence[ShardEntry]) -> None:
        budget = int(_SHARE_OF_CACHE * read_limit(store.cache_dir))
        queue = _Queue([shard.bytes for shard in shards], budget)
        self._queue, self._place = queue, {shard.file: at for at, shard in enumerate(shards)}
        weakref.finalize(self, queue.stop).atexit = False
        for _ in range(_SHARDS_AT_ONCE):
            # Daemons only wait: the requests run in threads that end in order.
            threading.Thread(target=_work, args=(queue, store, shards), daemon=True).start()

    def reached(self, files: Iterable[str]) -> None:
        """Called with the shards that are needed now."""
        places = [self._place[file] for file in files if file in self._place]
        if places:
            self._queue.reach(max(places))


class _Queue:
    """The next shard to download, and when."""

    def __init__(self, sizes: Sequence[int], budget: int) -> None:
        self._starts = [0, *accumulate(sizes)]
        self._budget, self._next, self._reached, self._ended = budget, 0, 0, False
        self._change = threading.Condition()

    def take(self) -> int | None:
        """The place of the next shard, as soon as it is near enough; None at the end."""
        with self._change:
            self._change.wait_for(self._may_go_on)
            if self._ended or self._next + 1 >= len(self._starts):
                return None
            self._next += 1
            return self._next - 1

    def _may_go_on(self) -> bool:
        if self._ended or self._next + 1 >= len(self._starts) or self._next <= self._reached:
            return True
        return self._starts[self._next + 1] <= self._starts[self._reached] + self._budget

    def reach(self, place: int) -> None:
        with self._change:
            if place > self._reached:
                self._reached = place
                self._change.notify_all()

    def wait_for_reader(self, place: int) -> bool:
        """Waits until the reader has come to this shard; False if it never will."""
        with self._change:
            self._change.wait_for(lambda: self._ended or self._reached >= place)
            return not self._ended

    def stop(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()


def _work(queue: _Queue, store: MirrorFolder, shards: Sequence[ShardEntry]) -> None:
    while (place := queue.take()) is not None:
        try:
            hold_shard(store, shards[place], None)
        except CacheFullError:
            if not queue.wait_for_reader(place):
                return
        except (ClewError, OSError):
            return
