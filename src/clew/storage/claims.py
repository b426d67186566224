"""Which shard a worker makes next, when any number of workers share a store."""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from clew.storage.leases import Lease, Leases

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
