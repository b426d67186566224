"""Leases: which worker makes which shard. A lease is a small file that its holder renews; one that
has not changed for its term is over. No two clocks are compared: a worker counts the time since it
last saw a lease change by its own."""

import functools
import json
import os
import random
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import psutil

from clew.base.errors import StoreError
from clew.base.typed_json import Bounds, Count, read_as
from clew.storage.place import AccessDeniedError, ChangedError, Content, Place
from clew.storage.places import FolderPlace
from clew.storage.reading import parse_json

WORK_FOLDER = ".work"
LEASE_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0
_MAX_BYTES = 10_000
# A holder that could not renew for this share of the term stops writing, before others take over.
_OWN_SHARE = 0.75
_RENEWALS_PER_TERM = 4


_START, _ENDING = "lease-", ".json"
# Shards that a worker tries to claim before it looks again what others hold.
_MOST_TRIED = 4
# A worker picks from this many pending shards: workers that start together, or that know what was
# done only up to their last shard, rarely pick the same or a finished one.
_LEAST_WINDOW, _WINDOW_PER_WORKER = 64, 8
# Leases of others that a worker without work watches: many idle workers must not flood a store
# with requests. What it does not watch, others do, or it does so later.
_MOST_WATCHED = 8
# A worker without work looks again after this time per worker, at least so often per term.
_LOOK_SECONDS = 0.25
_LOOKS_PER_TERM = 6
_STOP_SECONDS = 0.1


def _find_start(pid: int) -> float | None:
    """When a process started, by a clock that nobody sets where there is one; None if it has
    ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if sys.platform != "linux":
            return process.create_time()
        # The name in parentheses may contain anything; the 22nd field is the start in ticks.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return float(fields[19])
    except (psutil.NoSuchProcess, OSError):
        return None


@functools.cache
def _describe_machine() -> str:
    """The same for two processes exactly if they see each other's process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts = [socket.gethostname(), f"{uuid.getnode():x}"]
    with suppress(OSError):  # not Linux
        parts = [boot.read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a lease. `machine` names a running kernel and its process numbers, so
    that a worker on the same machine can see that the process has ended."""

    worker: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=_describe_machine)
    pid: Count = field(default_factory=os.getpid)
    started: float = field(default_factory=lambda: _find_start(os.getpid()) or 0.0)

    @property
    def is_here(self) -> bool:
        """Whether the process runs, or ran, on this machine."""
        return self.machine == _describe_machine()

    def has_ended(self) -> bool:
        """Whether the process is known to have ended; False for one on another machine."""
        return self.is_here and _find_start(self.pid) != self.started


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """The content of a lease file."""

    owner: Owner
    seconds: Annotated[float, Bounds(least=0, most=_LONGEST_SECONDS)]
    renewals: Count


class Lease:
    """A claim of this worker. It lasts while it is renewed in time."""

    def __init__(self, name: str, seconds: float, now: Callable[[], float]) -> None:
        self.name = name
        self._seconds, self._now = seconds, now
        self._renewed = now()
        self._is_lost = False
        # The version of the file as this worker wrote it, None before it is known.
        self.version: str | None = None
        self.renewals = 0

    @property
    def is_held(self) -> bool:
        """Whether this worker may still write what the lease is for."""
        return not self._is_lost and self._now() - self._renewed < _OWN_SHARE * self._seconds

    def renewed(self, at: float, version: str) -> None:
        self._renewed, self.version = at, version

    def lose(self) -> None:
        self._is_lost = True


class Leases:
    """The leases in a place, and those that this worker holds. `now` is a monotonic clock in
    seconds. Threads may share it."""

    def __init__(
        self,
        place: Place,
        *,
        seconds: float = LEASE_SECONDS,
        owner: Owner | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place, self.seconds, self.owner = place, seconds, owner or Owner()
        self.now = now
        self._held: dict[str, Lease] = {}
        self._seen: dict[str, tuple[str, float]] = {}
        self._guard = threading.Lock()

    @property
    def renew_seconds(self) -> float:
        """How often `renew` is to be called."""
        return self.seconds / _RENEWALS_PER_TERM

    def names(self) -> set[str]:
        """What any worker holds a lease for, or held one for when it died."""
        files = self.place.names(_START)
        return {name[len(_START) : -len(_ENDING)] for name in files if name.endswith(_ENDING)}

    def read(self, name: str) -> LeaseRecord | None:
        """What the holder of a lease wrote, None if there is none."""
        found = self._read(name)
        return None if found is None else _parse(found)

    def claim(self, name: str) -> Lease | None:
        """A lease for `name`, None if another worker holds it. One that is over is taken over."""
        lease = Lease(name, self.seconds, self.now)
        if not self.place.create(_file_name(name), self._encode(lease)):
            found = self._read(name)
            if found is None or not self._is_over(name, found):
                return None
            try:
                at = self.now()
                lease.renewed(
                    at, self.place.replace(_file_name(name), self._encode(lease), found.version)
                )
            except ChangedError:
                return None
        with self._guard:
            self._held[name] = lease
            self._seen.pop(name, None)
        return lease

    def renew(self) -> None:
        """Renews all leases that are still held. Those that another worker has taken over, or that
        cannot be renewed, are lost in time."""
        with self._guard:
            held = [lease for lease in self._held.values() if lease.is_held]
        for lease in held:
            self._renew(lease)

    def release(self, lease: Lease) -> None:
        """Ends a lease. One that is over stays for the worker that takes it over."""
        with self._guard:
            self._held.pop(lease.name, None)
        if lease.is_held:
            lease.lose()
            try:
                self.place.delete(_file_name(lease.name))
            except AccessDeniedError:
                self._leave(lease)

    def _leave(self, lease: Lease) -> None:
        """Ends a lease that may not be deleted: it lasts no longer than until it is seen."""
        ended = LeaseRecord(owner=self.owner, seconds=0, renewals=lease.renewals)
        with suppress(StoreError):
            self.place.replace(_file_name(lease.name), _encode(ended), lease.version)

    def release_all(self) -> None:
        for lease in [*self._held.values()]:
            self.release(lease)

    def tidy(self) -> None:
        """Removes the folder of the leases once all work is done."""
        if isinstance(self.place, FolderPlace):
            self.place.remove_if_empty()

    def clear(self, name: str) -> None:
        """Removes a lease for what is done, if its holder has ended."""
        found = self._read(name)
        if found is not None and self._is_over(name, found):
            with suppress(AccessDeniedError):
                self.place.delete(_file_name(name))

    def _renew(self, lease: Lease) -> None:
        lease.renewals += 1
        at = self.now()
        try:
            if lease.version is None:
                found = self._read(lease.name)
                record = None if found is None else _parse(found)
                if found is None or record is None or record.owner != self.owner:
                    raise ChangedError("")
                lease.version = found.version
            lease.renewed(
                at,
                self.place.replace(_file_name(lease.name), self._encode(lease), lease.version),
            )
        except (ChangedError, FileNotFoundError):
            lease.lose()

    def _read(self, name: str) -> Content | None:
        try:
            return self.place.read(_file_name(name), _MAX_BYTES)
        except FileNotFoundError:
            return None

    def _is_over(self, name: str, found: Content) -> bool:
        """Whether the holder has ended, or has not renewed for a whole term that this worker has
        watched."""
        record = _parse(found)
        if record is not None and (record.owner == self.owner or record.owner.has_ended()):
            with self._guard:
                return name not in self._held or not self._held[name].is_held
        version, since = self._seen.get(name, ("", 0.0))
        if version != found.version:
            self._seen[name] = (found.version, self.now())
            return False
        return self.now() - since >= (record.seconds if record else self.seconds)

    def _encode(self, lease: Lease) -> bytes:
        return _encode(LeaseRecord(owner=self.owner, seconds=self.seconds, renewals=lease.renewals))


class Heartbeat:
    """Renews a worker's leases from a thread of its own, in a `with` block."""

    def __init__(self, leases: Leases) -> None:
        self._leases, self._end = leases, threading.Event()
        self._thread = threading.Thread(target=self._run, name="clew-heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._leases.renew_seconds):
            # A server that does not answer in time costs the leases, not the run.
            with suppress(StoreError, OSError):
                self._leases.renew()


def _file_name(name: str) -> str:
    return f"{_START}{name}{_ENDING}"


def _encode(record: LeaseRecord) -> bytes:
    return json.dumps(asdict(record)).encode()


def _parse(content: Content) -> LeaseRecord | None:
    """None if it is damaged: such a lease is over when it has not changed for a term."""
    try:
        record: LeaseRecord = read_as(LeaseRecord, parse_json(content.data))
    except ValueError:
        return None
    return record


class Claim(NamedTuple):
    """A shard that this worker makes while it holds the lease."""

    number: int
    lease: Lease


class Claims:
    """Hands out pending shards to one worker. `take` and `give_up` never wait, so that a simulation
    can call them.

    `find_pending` reads which shards the store still lacks; one that it does not name is done for
    everyone. `prefix` distinguishes the leases of other work in the same place.
    """

    def __init__(
        self, leases: Leases, find_pending: Callable[[], Iterable[int]], *, prefix: str = ""
    ) -> None:
        self.leases, self._prefix = leases, prefix
        self._find_pending = find_pending
        self._chance = random.Random(leases.owner.worker)
        self._pending: list[int] | None = None
        self._mine: set[int] = set()
        self._watched: list[int] = []
        self._workers = 1

    @property
    def pending(self) -> Sequence[int]:
        """The shards that nobody had finished when they were last looked at."""
        return self.look() if self._pending is None else self._pending

    @property
    def others(self) -> list[int]:
        """Pending shards that this worker has not claimed."""
        return [number for number in self.pending if number not in self._mine]

    @property
    def wait_seconds(self) -> float:
        """How long to wait after `take` gave None; many workers look less often."""
        most = self.leases.seconds / _LOOKS_PER_TERM
        return min(most, _LOOK_SECONDS * self._workers) * self._chance.uniform(0.5, 1.0)

    def take(self) -> Claim | None:
        """A pending shard and the lease for it. None: all are done or claimed."""
        taken = self.leases.names()
        self._workers = len(taken) + 1
        if not self._find_free(taken):
            self.look()
        for _ in range(_MOST_TRIED):
            free = self._find_free(taken)
            if not free:
                break
            number = self._pick(free) if taken else free[0]
            if (claim := self._claim([number])) is not None:
                return claim
            # Another worker holds it, or it is done and was looked at again.
            taken.add(self._name(number))
        return self._claim(self._choose_watched(taken))

    def give_up(self, claim: Claim) -> None:
        """The shard is done, or left to others."""
        self._mine.discard(claim.number)
        self.leases.release(claim.lease)

    def look(self) -> Sequence[int]:
        """Reads again which shards are pending."""
        self._pending = list(self._find_pending())
        return self._pending

    def clear(self) -> None:
        """Removes what dead workers left of shards that are done."""
        pending = {self._name(number) for number in self.look()}
        for name in self.leases.names() - pending:
            self.leases.clear(name)
        if not pending:
            self.leases.tidy()

    def _find_free(self, taken: Collection[str]) -> list[int]:
        return [number for number in self.others if self._name(number) not in taken]

    def _pick(self, free: Sequence[int]) -> int:
        """One of the first shards, but not the same for all workers. What was pending when this
        worker last looked is done at the front, so that it looks far enough behind."""
        window = max(_LEAST_WINDOW, _WINDOW_PER_WORKER * self._workers)
        return free[self._chance.randrange(min(len(free), window))]

    def _choose_watched(self, taken: Collection[str]) -> list[int]:
        """Shards whose leases are looked at: the same ones each time, until they are done."""
        held = [number for number in self.others if self._name(number) in taken]
        kept = [number for number in self._watched if number in held]
        more = [number for number in held if number not in kept]
        room = min(len(more), _MOST_WATCHED - len(kept))
        self._watched = kept + self._chance.sample(more, room)
        return self._watched

    def _claim(self, numbers: Iterable[int]) -> Claim | None:
        for number in numbers:
            lease = self.leases.claim(self._name(number))
            if lease is None:
                continue
            if number in self.look():  # nobody has finished it just before
                self._mine.add(number)
                return Claim(number, lease)
            self.leases.release(lease)
        return None

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:04d}"


def take_all(
    claims: Claims,
    should_stop: Callable[[], bool],
    settle: Callable[[], object] = lambda: None,
    on_wait: Callable[[int], object] = lambda _: None,
) -> Iterator[Claim]:
    """Claims until all shards are done, by this worker or by others. `settle` finishes those that
    this worker still has in hand; `on_wait` gets the number of shards that it waits for, once."""
    is_told = False
    while not should_stop():
        claim = claims.take()
        if claim is not None:
            yield claim
            continue
        if not claims.others:
            settle()
            if not claims.look():
                return
        elif not is_told:
            is_told = True
            on_wait(len(claims.others))
        end = time.monotonic() + claims.wait_seconds
        while not should_stop() and time.monotonic() < end:
            time.sleep(_STOP_SECONDS)
