"""The right to write to a store at a URL: a lease instead of a lock, since no kernel releases one
when a process on another machine dies."""

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clew.base.errors import StoreLockedError
from clew.base.texts import for_terminal
from clew.storage.leases import WORK_FOLDER, Heartbeat, Lease, LeaseRecord, Leases
from clew.storage.places import open_place

_ALONE = "alone"
_WRITER = re.compile(r"writer-(\d+)-of-(\d+)")
_JOINED = re.compile(r"joined-\w+")
_LOOK_SECONDS = 0.5


@contextmanager
def lone_lease(store: Path) -> Iterator[None]:
    """Holds the right to write to the store while nobody else does."""
    with _holding(store, _ALONE, _is_writer, "Wait until it finishes."):
        yield


@contextmanager
def part_lease(store: Path, index: int, count: int) -> Iterator[None]:
    """Holds the right to write one part, beside other parts and processes that join."""

    def conflicts(name: str) -> bool:
        match = _WRITER.fullmatch(name)
        return name == _ALONE or (match is not None and int(match[2]) != count)

    advice = (
        "Wait until it finishes, choose another `out`, or start all processes with the same number "
        f"of parts (this one requested part {index}/{count})."
    )
    with _holding(store, f"writer-{index}-of-{count}", conflicts, advice):
        yield


@contextmanager
def joined_lease(store: Path) -> Iterator[None]:
    """Holds the right to write the shards that this process claims."""
    name = f"joined-{secrets.token_hex(8)}"
    with _holding(store, name, lambda name: name == _ALONE, "Wait until it finishes."):
        yield


def _is_writer(name: str) -> bool:
    return any(kind.fullmatch(name) for kind in (_WRITER, _JOINED))


@contextmanager
def _holding(
    store: Path, name: str, conflicts: Callable[[str], bool], advice: str
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
