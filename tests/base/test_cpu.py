"""The number of threads that PyTorch computes with while other processes hold the cores."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from clew.base.cores import CoresBusy, CoreWatch, Times, find_shortage
from clew.base.cpu import Threads, ThreadsChosen, map_on_cores, one_numpy_thread, time_on_core
from clew.base.errors import InputError
from clew.base.progress import Event
from tests.events import notes, pick


@dataclass
class Machine:
    """Two cores, of which others use `others`; this process uses half a core. Time passes with
    every look."""

    others: float = 0.0
    seconds: float = 100.0
    clock: float = 0.0
    busy: float = 0.0
    events: list[Event] = field(default_factory=list)

    def read(self) -> Times:
        self.clock += self.seconds
        self.busy += self.seconds * self.others
        own = self.clock / 2
        return Times(clock=self.clock, machine=self.busy + own, own=own)

    def threads(self, given: int | None = None) -> Threads:
        return Threads(given, self.events.append, CoreWatch(self.read))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("clew.base.cpu._LEAST_SECONDS", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(before)


def takes(by_threads: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Work that takes so many seconds with so many threads, by a clock of its own."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += by_threads[torch.get_num_threads()]

    return work


def refuse() -> None:
    raise AssertionError("nothing is timed")


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "chosen"), [({1: 1.0, 2: 7.0}, 1), ({1: 1.0, 2: 0.9}, 2)])
def test_the_fastest_number_of_threads_is_used_while_others_hold_cores(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], chosen: int
) -> None:
    machine.others = 1.5
    with machine.threads() as threads:
        threads.settle(takes(seconds, monkeypatch))
        assert torch.get_num_threads() == chosen
        threads.settle(refuse)  # nothing has changed
        [told] = pick(machine.events, ThreadsChosen)
        assert told.threads == chosen and "other processes use 1.5 of 2 cores" in str(told)
        assert str(told).endswith(("7.0 times as fast as 2 now", "2 threads are still fastest"))
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_all_threads_are_used_again_when_the_cores_are_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.others = 2.0
    threads = machine.threads()
    threads.settle(takes({1: 1.0, 2: 2.0}, monkeypatch))
    machine.others = 0.1
    threads.settle(refuse)
    assert torch.get_num_threads() == 2 and "free again" in notes(machine.events)[0]


def test_threads_that_were_asked_for_stay(machine: Machine) -> None:
    machine.others = 1.5
    with machine.threads(2) as threads:
        threads.settle(refuse)
        assert torch.get_num_threads() == 2
    [busy] = pick(machine.events, CoresBusy)
    assert str(busy).endswith("`threads=1` may be faster than 2")
    with pytest.raises(InputError, match="1 or more"):
        machine.threads(0)


def test_nothing_is_measured_on_an_idle_machine(machine: Machine) -> None:
    machine.others = 0.2
    machine.threads().settle(refuse)
    assert machine.events == [] and torch.get_num_threads() == 2


def test_looks_that_follow_each_other_quickly_are_taken_together() -> None:
    machine = Machine(others=1.0, seconds=0.4)
    watch = CoreWatch(machine.read)
    assert [watch.look() for _ in range(3)] == [None, None, pytest.approx(1.0)]


def test_few_busy_cores_of_many_matter_only_if_all_are_to_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert find_shortage(3.0, 8) is None
    busy = find_shortage(3.0, 64)
    assert busy is not None and busy.free == 61


def test_every_core_works_with_one_thread_and_all_threads_come_back() -> None:
    threads = torch.get_num_threads()
    found = list(map_on_cores(lambda item: (item, torch.get_num_threads()), range(5), 2))
    assert found == [(item, 1) for item in range(5)]
    assert torch.get_num_threads() == threads
    with ThreadPoolExecutor(1) as pool:  # a new thread has as many
        assert pool.submit(torch.get_num_threads).result() == threads


def test_time_on_a_core_is_that_of_the_work() -> None:
    matrix = torch.randn(200, 200)
    assert time_on_core(lambda: None) < time_on_core(lambda: torch.linalg.svd(matrix))


def test_numpy_has_one_thread_where_it_should_and_gets_the_others_back() -> None:
    def count_threads() -> set[int]:
        pools = [pool for pool in threadpool_info() if "numpy" in pool["filepath"]]
        return {pool["num_threads"] for pool in pools}

    def score() -> set[int]:
        with one_numpy_thread():
            return count_threads()

    with threadpool_limits(2, user_api="blas"):
        before = count_threads()
        with one_numpy_thread(), ThreadPoolExecutor(1) as other:
            assert count_threads() <= {1}
            assert other.submit(score).result(60) <= {1}  # waits for nobody
            assert count_threads() <= {1}
        assert before <= {2} and count_threads() == before
