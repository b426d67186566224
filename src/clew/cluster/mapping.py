"""One function over many items, on the workers of a cluster: results in the order of the items."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clew.base.errors import ClewError
from clew.base.progress import Note, Reporter, WorkerProgress, WorkersAdvanced
from clew.cluster.connecting import Cluster, connected, refuse_lost_node
from clew.cluster.crew import LONG_SECONDS, explain_deaths, tell_waiting
from clew.cluster.plan import CrewPlan, plan_crew
from clew.cluster.worker import Outcome

Item = TypeVar("Item")
Result = TypeVar("Result")
_LOOK_SECONDS = 0.25
_MOST_DEATHS = 3
# Items per worker that are given out before the first of them is back: one to work on, and some so
# that a slow one does not block the others.
_AHEAD = 4


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where work is spread: on the workers of a `cluster` ("ray" or "ray://host:port"), as many as
    the plan allows if `workers` is None, with so many CPU `threads` each."""

    cluster: str
    workers: int | None = None
    threads: int | None = None
    device: str | None = None


def spread(
    where: Spread,
    setup: Callable[[], Callable[[Item], Result]],
    items: Sequence[Item],
    reporter: Reporter,
    should_stop: Callable[[], bool] = lambda: False,
    count: Callable[[Result], int] = lambda _: 1,
    noun: str = "shard",
) -> Iterator[Result]:
    """What the function that `setup` makes, once in each worker, returns for each item. It gets the
    items in any order, and one again if its worker died. Ends early if asked to stop. Raises what
    the function raises, if a person can read it. `count` says what a result adds to the progress,
    `noun` what the items are.
    """
    with connected(where.cluster) as cluster:
        plan = plan_crew(
            cluster,
            units=len(items),
            noun=noun,
            workers=where.workers,
            threads=where.threads,
            use_gpus=where.device != "cpu" and cluster.gpus > 0,
        )
        reporter(Note(str(plan)))
        crew: _Spreading[Item, Result] = _Spreading(cluster, plan, setup, reporter, count)
        try:
            yield from crew.run(items, should_stop)
        finally:
            crew.end()


class _Doer:
    """An actor: makes its function when it gets its first item."""

    def __init__(self, setup: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        self._setup, self._threads = setup, threads
        self._function: Callable[[Any], Any] | None = None

    def begin(self) -> None:
        """Returns when the cluster has a place for it."""

    def do(self, item: Any) -> Outcome:
        try:
            if self._function is None:
                self._function = self._setup()
                self._limit_threads()
            return Outcome(result=self._function(item))
        except ClewError as error:
            return Outcome(error=error)

    def _limit_threads(self) -> None:
        if "torch" in sys.modules:
            import torch

            torch.set_num_threads(self._threads)


class _Spreading(Generic[Item, Result]):
    def __init__(
        self,
        cluster: Cluster,
        plan: CrewPlan,
        setup: Callable[[], Callable[[Item], Result]],
        reporter: Reporter,
        count: Callable[[Result], int],
    ) -> None:
        self._ray, self._plan, self._reporter = cluster.ray, plan, reporter
        self._setup = self._ray.put(setup)
        self._count = count
        # The worker and the number of the item; None while it waits for a place on the cluster.
        self._running: dict[Any, tuple[int, int | None]] = {}
        self._actors: dict[int, Any] = {}
        for worker in range(plan.workers):
            self._start(worker)
        self._done = dict.fromkeys(self._actors, 0)
        self._began, self._deaths, self._has_told = time.monotonic(), 0, False

    def run(self, items: Sequence[Item], should_stop: Callable[[], bool]) -> Iterator[Result]:
        waiting, ready, first = deque(range(len(items))), dict[int, Result](), 0
        while first < len(items) and not should_stop():
            self._give_out(items, waiting, first)
            ended, _ = self._ray.wait(list(self._running), timeout=_LOOK_SECONDS)
            for reference in ended:
                worker, number = self._running.pop(reference)
                try:
                    outcome: Outcome = self._ray.get(reference)
                except self._ray.exceptions.RayActorError as error:
                    self._replace(worker, number, waiting, error)
                    continue
                if number is None:
                    continue
                if outcome.error is not None:
                    raise outcome.error
                ready[number], self._deaths = outcome.result, 0
                self._done[worker] += self._count(outcome.result)
            while first in ready:
                yield ready.pop(first)
                first += 1
            self._report()

    def end(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)

    def _start(self, worker: int) -> None:
        options = {"num_cpus": self._plan.threads, "num_gpus": self._plan.gpus}
        actor = self._ray.remote(_Doer).options(**options).remote(self._setup, self._plan.threads)
        self._actors[worker] = actor
        self._running[actor.begin.remote()] = worker, None

    def _give_out(self, items: Sequence[Item], waiting: "deque[int]", first: int) -> None:
        busy = [worker for worker, _ in self._running.values()]
        free = [worker for worker in self._actors if worker not in busy]
        for worker in free:
            if waiting and waiting[0] < first + _AHEAD * self._plan.workers:
                number = waiting.popleft()
                reference = self._actors[worker].do.remote(items[number])
                self._running[reference] = worker, number

    def _replace(
        self, worker: int, number: int | None, waiting: "deque[int]", error: Exception
    ) -> None:
        refuse_lost_node(self._ray)
        if number is not None:
            waiting.appendleft(number)
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS * self._plan.workers:
            raise ClewError(explain_deaths(self._deaths, error))
        self._reporter(Note(f"worker {worker + 1} died; another one is started"))
        self._start(worker)

    def _report(self) -> None:
        seconds = max(1.0, time.monotonic() - self._began)
        if not self._has_told and seconds > LONG_SECONDS:
            self._has_told = True
            placeless = [number for _, number in self._running.values() if number is None]
            tell_waiting(len(placeless), self._plan.workers, self._reporter)
        self._reporter(
            WorkersAdvanced(
                workers=tuple(
                    WorkerProgress(number=n + 1, host="", count=done, per_second=done / seconds)
                    for n, done in self._done.items()
                )
            )
        )
