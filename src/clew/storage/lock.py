"""Locks on parts of a store, so that only one process writes each. The kernel releases the locks of
a process that dies."""

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import filelock

from clew.errors import InputError, StoreLockedError
from clew.foreign_text import for_terminal
from clew.storage.manifest import MANIFEST_NAME, manifest_lock
from clew.storage.reading import read_json
from clew.storage.writing import lock_file, remove_temporaries, replace_file

_MAX_OWNER_BYTES = 10_000
_LOCK_NAME = re.compile(r"\.writer-(\d+)-of-(\d+)\.lock$")


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
def writer_lock(store: Path, part: Part) -> Iterator[None]:
    """Holds the right to write one part; raises StoreLockedError when another process has it.

    A lock for another number of parts would share batches with this one, so the two conflict.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f'the folder "{store}" cannot be created ({error.strerror}): choose another `out`.'
        ) from None
    path = store / f".writer-{part.index}-of-{part.count}.lock"
    lock = lock_file(path, timeout_seconds=0)
    with _changing(store):
        for other in sorted(store.glob(".writer-*-of-*.lock")):
            match = _LOCK_NAME.search(other.name)
            if match and (int(match[2]) != part.count or other == path):
                _refuse_if_held(other, part)
        lock.acquire()
        # Only written under the lock of the manifest: what is there now, a killed process left.
        remove_temporaries(store, MANIFEST_NAME, _owner_file(path).name)
        replace_file(_owner_file(path), _describe_owner().encode())
    try:
        yield
    finally:
        _owner_file(path).unlink(missing_ok=True)
        lock.release()


@contextmanager
def _changing(store: Path) -> Iterator[None]:
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


def _refuse_if_held(path: Path, part: Part) -> None:
    probe = lock_file(path, timeout_seconds=0)
    try:
        probe.acquire()
        probe.release()
    except filelock.Timeout:
        owner = _read_owner(path)
        raise StoreLockedError(
            f"another process is writing to this store: {owner}. Wait until it finishes, choose "
            "another `out`, or start all processes with the same number of parts (this one "
            f"requested part {part}).",
            owner=owner,
        ) from None


def _describe_owner() -> str:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": started})


def _read_owner(path: Path) -> str:
    try:
        owner = read_json(_owner_file(path), max_bytes=_MAX_OWNER_BYTES)
        words = [for_terminal(owner[name])[:80] for name in ("pid", "host", "since")]
        return "process {} on {}, since {}".format(*words)
    except (OSError, ValueError, KeyError, TypeError):
        return path.name
