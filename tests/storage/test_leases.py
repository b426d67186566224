"""Workers share a store's shards by leases: each shard has one worker, and a dead one's is taken
over."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clew.storage.leases import Claims, Lease, Leases, Owner
from clew.storage.places import open_place

TERM = 60.0
NAME = "0007"


class Clock:
    """A machine's clock; two machines need not agree."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def worker(folder: Path, clock: Clock, machine: str = "elsewhere") -> Leases:
    owner = replace(Owner(), machine=machine)
    return Leases(open_place(folder), seconds=TERM, owner=owner, now=clock)


def claimed(leases: Leases, name: str = NAME) -> Lease:
    lease = leases.claim(name)
    assert lease is not None
    return lease


def test_one_of_two_workers_gets_a_shard(tmp_path: Path) -> None:
    one, two = worker(tmp_path, Clock()), worker(tmp_path, Clock())
    lease = claimed(one)
    assert two.claim(NAME) is None
    assert one.claim(NAME) is None
    one.release(lease)
    assert claimed(two).is_held
    assert two.names() == {NAME}


@pytest.mark.parametrize("skew", [0.0, -86_400.0, 86_400.0])
def test_a_silent_workers_shard_is_taken_over_whatever_its_clock_says(
    tmp_path: Path, skew: float
) -> None:
    dead, clock = worker(tmp_path, Clock(skew)), Clock()
    claimed(dead)
    alive = worker(tmp_path, clock)
    assert alive.claim(NAME) is None
    clock.seconds = TERM - 1
    assert alive.claim(NAME) is None
    clock.seconds = TERM + 1
    assert claimed(alive).is_held


def test_a_renewed_lease_is_not_taken_over(tmp_path: Path) -> None:
    theirs, clock = Clock(), Clock()
    holder, other = worker(tmp_path, theirs), worker(tmp_path, clock)
    lease = claimed(holder)
    for second in range(0, 600, 15):
        theirs.seconds = clock.seconds = second
        holder.renew()
        assert lease.is_held and other.claim(NAME) is None


def test_a_worker_that_could_not_renew_stops_before_others_take_over(tmp_path: Path) -> None:
    clock = Clock()
    holder, other = worker(tmp_path, clock), worker(tmp_path, clock)
    lease = claimed(holder)
    assert other.claim(NAME) is None
    clock.seconds = 0.8 * TERM
    assert not lease.is_held
    assert other.claim(NAME) is None
    clock.seconds = TERM
    claimed(other)
    holder.renew()
    holder.release(lease)
    assert other.names() == {NAME}, "the lease of the new holder must stay"


def test_a_lease_that_was_taken_over_is_lost_at_the_next_renewal(tmp_path: Path) -> None:
    stopped, clock = Clock(), Clock()
    holder, other = worker(tmp_path, stopped), worker(tmp_path, clock)
    lease = claimed(holder)
    other.claim(NAME)
    clock.seconds = TERM
    claimed(other)
    holder.renew()  # its own clock has stood still, as in a machine that was suspended
    assert not lease.is_held


def test_a_worker_takes_its_own_lost_lease_again(tmp_path: Path) -> None:
    clock = Clock()
    holder = worker(tmp_path, clock)
    claimed(holder)
    clock.seconds = TERM
    assert claimed(holder).is_held


def test_a_process_that_ended_on_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    ended = replace(Owner(), pid=child.pid)
    child.wait()
    claimed(Leases(open_place(tmp_path), owner=ended))
    here = Leases(open_place(tmp_path))
    assert claimed(here).is_held
    assert Leases(open_place(tmp_path)).claim(NAME) is None, "this process still runs"


@pytest.mark.parametrize("content", [b"", b"[]", b"{" * 50, json.dumps({"seconds": -1}).encode()])
def test_a_damaged_lease_is_over_after_a_term(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"lease-{NAME}.json").write_bytes(content)
    clock = Clock()
    leases = worker(tmp_path, clock)
    assert leases.claim(NAME) is None
    clock.seconds = TERM
    assert claimed(leases).is_held


class Capture:
    """A store of ten shards, and workers that make them."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.done: list[int] = []

    def worker(self, find_pending: Callable[[], list[int]] | None = None) -> Claims:
        return Claims(worker(self.folder, self.clock), find_pending or self.find_pending)

    def find_pending(self) -> list[int]:
        return [number for number in range(10) if number not in self.done]


def test_workers_in_turn_make_every_shard_once(tmp_path: Path) -> None:
    capture = Capture(tmp_path, Clock())
    workers = [capture.worker() for _ in range(3)]
    while capture.find_pending():
        claims = [(one, claim) for one in workers if (claim := one.take()) is not None]
        for one, claim in claims:
            capture.done.append(claim.number)
            one.give_up(claim)
    assert sorted(capture.done) == list(range(10))
    assert all(one.take() is None for one in workers)
    assert workers[0].leases.names() == set()


def test_the_shards_of_a_dead_worker_are_taken_over(tmp_path: Path) -> None:
    capture = Capture(tmp_path, Clock())
    dead, alive = capture.worker(), capture.worker()
    assert dead.take() is not None and dead.take() is not None
    while (claim := alive.take()) is not None:
        capture.done.append(claim.number)
        alive.give_up(claim)
    assert len(capture.done) == 8 and len(alive.others) == 2
    capture.clock.seconds = TERM
    for _ in range(2):
        claim = alive.take()
        assert claim is not None
        capture.done.append(claim.number)
        alive.give_up(claim)
    assert sorted(capture.done) == list(range(10))


def test_a_shard_that_was_finished_meanwhile_is_not_made_again(tmp_path: Path) -> None:
    capture = Capture(tmp_path, Clock())
    late = capture.worker()
    assert len(late.pending) == 10
    capture.done = list(range(10))
    assert late.take() is None and not late.others
    assert late.leases.names() == set()


def test_leases_of_dead_workers_for_finished_shards_are_removed(tmp_path: Path) -> None:
    capture = Capture(tmp_path, Clock())
    capture.worker().take()
    capture.done = list(range(10))
    alive = capture.worker()
    alive.clear()
    assert len(alive.leases.names()) == 1, "its holder may still be about to release it"
    capture.clock.seconds = TERM
    alive.clear()
    assert alive.leases.names() == set()


def test_what_a_killed_worker_had_half_written_is_removed_at_the_end(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    work.mkdir()
    (work / "lease-0003.json.1ea1a4dc.tmp").write_bytes(b"{")
    Claims(Leases(open_place(work)), lambda: []).clear()
    assert not work.exists()


def test_a_worker_alone_starts_with_the_first_shard(tmp_path: Path) -> None:
    claim = Capture(tmp_path, Clock()).worker().take()
    assert claim is not None and claim.number == 0


def test_what_others_finished_since_the_last_look_is_not_waited_for(tmp_path: Path) -> None:
    capture = Capture(tmp_path, Clock())
    one, two = capture.worker(), capture.worker()
    assert len(one.pending) == 10 and two.take() is not None
    capture.done = list(range(1, 9))
    claim = one.take()
    assert claim is not None and claim.number == 9
