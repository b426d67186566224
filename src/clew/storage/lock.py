"""Locks on parts of a store, so that only one process writes each. In a folder, the kernel releases
the locks of a process that dies; at a URL, a lease takes the place of a lock."""

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import filelock

from clew.base.errors import InputError, StoreLockedError
from clew.base.texts import for_terminal
from clew.base.urls import UrlPath
from clew.storage.leases import WORK_FOLDER, Heartbeat, Lease, LeaseRecord, Leases
from clew.storage.manifest import MANIFEST_NAME, manifest_lock
from clew.storage.places import open_place
from clew.storage.reading import read_json
from clew.storage.writing import lock_file, remove_temporaries, replace_file

_MAX_OWNER_BYTES = 10_000
_OTHER_PARTS = (
    "Wait until it finishes, choose another `out`, or start all processes with the same number of "
    "parts (this one requested part {part})."
)
_LOCK_NAME = re.compile(r"\.writer-(\d+)-of-(\d+)\.lock$")


_ALONE = "alone"
_WRITER = re.compile(r"writer-(\d+)-of-(\d+)$|joined-\w+$")
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part `index` (from 1) of `count`: it owns every batch b with b % count == index - 1."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise InputError(
                'write it as I/N with I from 1 to N, for example `part="2/8"`.',
                setting="part",
                value=str(self),
            )

    @classmethod
    def parse(cls, text: str) -> "Part":
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if match is None:
            raise InputError(
                'write it as I/N, for example `part="2/8"`.', setting="part", value=text
            )
        return cls(index=int(match[1]), count=int(match[2]))

    def owns(self, batch_number: int) -> bool:
        return batch_number % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@contextmanager
def writer_lock(store: Path, part: Part, *, shared: bool = False) -> Iterator[None]:
    """Holds the right to write one part; raises StoreLockedError when another process has it.

    A lock for another number of parts would share batches with this one, so the two conflict. With
    `shared`, this process claims each shard that it writes, so that others may join it; without,
    it also conflicts with those.
    """
    if isinstance(store, UrlPath):
        with _part_lease(store, part) if shared else lone_lease(store):
            yield
        return
    path = store / f".writer-{part.index}-of-{part.count}.lock"
    with _changing(store):
        for other in sorted(store.glob(".writer-*-of-*.lock")):
            match = _LOCK_NAME.search(other.name)
            if match and (int(match[2]) != part.count or other == path):
                _refuse_if_held(other, _OTHER_PARTS.format(part=part))
        for other in sorted(store.glob(".joined-*.lock")):
            if not shared:
                _refuse_if_held(other, "Wait until it finishes.")
        _remove_ended(store)
        lock = _hold(path, shared=shared)
    with _released(path, lock):
        yield


@contextmanager
def joined_lock(store: Path) -> Iterator[None]:
    """Holds the right to write the shards that this process claims, beside others that claim
    theirs; raises StoreLockedError when one writes without."""
    if isinstance(store, UrlPath):
        name = f"joined-{secrets.token_hex(8)}"
        with _holding(store, name, lambda name: name == _ALONE, "Wait until it finishes."):
            yield
        return
    path = store / f".joined-{secrets.token_hex(8)}.lock"
    with _changing(store):
        for other in sorted(store.glob(".writer-*-of-*.lock")):
            if not _is_shared(other):
                _refuse_if_held(other, "Wait until it finishes: it cannot be joined.")
        _remove_ended(store)
        lock = _hold(path, shared=True)
    with _released(path, lock):
        yield


def _hold(path: Path, *, shared: bool) -> filelock.BaseFileLock:
    lock = lock_file(path, timeout_seconds=0)
    lock.acquire()
    # Only written under the lock of the manifest: what is there now, a killed process left.
    remove_temporaries(path.parent, MANIFEST_NAME, _owner_file(path).name)
    replace_file(_owner_file(path), _describe_owner(shared=shared).encode())
    return lock


@contextmanager
def _released(path: Path, lock: filelock.BaseFileLock) -> Iterator[None]:
    try:
        yield
    finally:
        _owner_file(path).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError), manifest_lock(path.parent):
            _remove_ended(path.parent)


@contextmanager
def _changing(store: Path) -> Iterator[None]:
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{store}" cannot be created ({error.strerror}): choose another `out`.'
        ) from None
    try:
        with manifest_lock(store):
            yield
    except PermissionError as error:
        raise InputError(
            f'the folder "{store}" cannot be written to ({error.strerror}): check its '
            "permissions, or choose another `out`."
        ) from None


def _owner_file(lock_path: Path) -> Path:
    return lock_path.with_suffix(".json")


def _refuse_if_held(path: Path, advice: str) -> None:
    if _is_held(path):
        owner = _read_owner(path)
        raise StoreLockedError(
            f"another process is writing to this store: {owner}. {advice}", owner=owner
        )


def _is_held(path: Path) -> bool:
    probe = lock_file(path, timeout_seconds=0)
    try:
        probe.acquire()
    except filelock.Timeout:
        return True
    probe.release()
    return False


def _remove_ended(store: Path) -> None:
    """Removes the locks of processes that had joined and have ended, or were killed."""
    for path in sorted(store.glob(".joined-*.lock")):
        if not _is_held(path):
            _owner_file(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _is_shared(path: Path) -> bool:
    """Whether the holder of a lock claims each shard that it writes."""
    try:
        owner = read_json(_owner_file(path), max_bytes=_MAX_OWNER_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(owner, dict) and owner.get("shared") is True


def _describe_owner(*, shared: bool) -> str:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": started}
    return json.dumps({**owner, "shared": True} if shared else owner)


def _read_owner(path: Path) -> str:
    try:
        owner = read_json(_owner_file(path), max_bytes=_MAX_OWNER_BYTES)
        words = [for_terminal(owner[name])[:80] for name in ("pid", "host", "since")]
        return "process {} on {}, since {}".format(*words)
    except (OSError, ValueError, KeyError, TypeError):
        return path.name


def lone_lease(store: Path) -> AbstractContextManager[None]:
    """Holds the right to write to the store while nobody else does."""
    return _holding(store, _ALONE, _WRITER.match, "Wait until it finishes.")


def _part_lease(store: Path, part: Part) -> AbstractContextManager[None]:
    """Holds the right to write one part, beside other parts and processes that join."""

    def conflicts(name: str) -> bool:
        match = _WRITER.fullmatch(name)
        return name == _ALONE or (match is not None and match[2] not in (None, str(part.count)))

    name = f"writer-{part.index}-of-{part.count}"
    return _holding(store, name, conflicts, _OTHER_PARTS.format(part=part))


@contextmanager
def _holding(
    store: Path, name: str, conflicts: Callable[[str], object], advice: str
) -> Iterator[None]:
    leases = Leases(open_place(store).child(WORK_FOLDER))
    lease = leases.claim(name) or _take_over(leases, name, advice)
    with Heartbeat(leases):
        try:
            # First its own lease, then a look at others': of two that start at the same time, at
            # least one sees the other.
            for other in sorted(filter(conflicts, leases.names())):
                leases.release(_take_over(leases, other, advice))
            yield
        finally:
            leases.release(lease)


def _take_over(leases: Leases, name: str, advice: str) -> Lease:
    """The lease of a process that has ended; raises StoreLockedError if it goes on. For one on
    another machine, that takes a while to see."""
    first = leases.read(name)
    while (lease := leases.claim(name)) is None:
        found = leases.read(name)
        if found is not None and (found.owner.is_here or found != first):
            raise _locked(found, advice)
        first = found
        time.sleep(_LOOK_SECONDS)
    return lease


def _locked(record: LeaseRecord, advice: str) -> StoreLockedError:
    owner = f"process {record.owner.pid} on {for_terminal(record.owner.host)[:80]}"
    return StoreLockedError(
        f"another process is writing to this store: {owner}. {advice}", owner=owner
    )
