"""Workers on Ray, replaced when they die: one function over many items, with results in the order
of the items, or work that the workers share among themselves, reported as one."""

import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from clew.base.errors import ClewError, InputError, StoppedError, without_settings
from clew.base.progress import (
    Event,
    Note,
    OthersAdvanced,
    Reporter,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkerProgress,
    WorkersAdvanced,
    WorkStarted,
    WorkUnderway,
)
from clew.base.texts import counted
from clew.cluster.connection import (
    Cluster,
    WorkerPlan,
    connected,
    find_raylet,
    plan_workers,
    refuse_lost_raylet,
)
from clew.version import __version__

Item = TypeVar("Item")
Result = TypeVar("Result")
# Called in each worker with its reporter and its `should_stop`; it ends when nothing is left to do.
Work = Callable[[Reporter, Callable[[], bool]], Any]
_INFO = 20
_LOOK_SECONDS = 0.25
_COUNT_SECONDS = 10.0
# Times that each worker may die without any having done something in between.
_MOST_DEATHS = 3
# Then it is worth saying that not all workers have a place yet.
_LONG_SECONDS = 60.0
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a piece of work ended: with a result, with an error that a person can read, or because it
    was asked to stop."""

    result: Any = None
    error: ClewError | None = None
    is_stopped: bool = False


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
        plan = plan_workers(
            cluster,
            units=len(items),
            noun=noun,
            workers=where.workers,
            threads=where.threads,
            use_gpus=where.device != "cpu" and cluster.gpus > 0,
        )
        reporter(Note(str(plan)))
        pool = _Pool(cluster, plan, setup, items, reporter)
        try:
            yield from _in_order(pool, len(items), should_stop, count)
        finally:
            pool.end()


def _in_order(
    pool: "_Pool", total: int, should_stop: Callable[[], bool], count: Callable[[Any], int]
) -> Iterator[Any]:
    done: dict[int, Any] = {}
    first = 0
    while first < total and not should_stop():
        pool.give_out(first + _AHEAD * pool.plan.workers)
        for member, number, outcome in pool.look():
            if outcome.error is not None:
                raise outcome.error
            done[number] = outcome.result
            member.count += count(outcome.result)
        while first in done:
            yield done.pop(first)
            first += 1
        pool.report()


def run_workers(
    cluster: Cluster,
    plan: WorkerPlan,
    work: Work,
    reporter: Reporter,
    should_stop: Callable[[], bool],
    count_done: Callable[[], int] = lambda: 0,
) -> list[Outcome]:
    """Run `work` in every worker until each has ended; returns how. `count_done` says how many
    items are done in all, by workers of others too. Raises the first error of a worker, after the
    others have stopped in order, and ClewError if one worker after the other dies."""
    pool = _ReportingPool(cluster, plan, work, range(plan.workers), reporter)
    outcomes: list[Outcome] = []
    reporter(StepStarted(name=f"starting {counted(plan.workers, 'worker')}"))
    try:
        while pool.is_busy or (pool.waiting and not pool.is_stopping):
            if should_stop() or any(outcome.error for outcome in outcomes):
                pool.stop()
            pool.give_out(plan.workers)
            for member, _, outcome in pool.look():
                pool.release(member)
                outcomes.append(outcome)
            pool.listen()
            pool.report()
            pool.count_others(count_done)
        pool.count_others(count_done, now=True)
    finally:
        pool.end()
    reporter(WorkEnded())
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes


class Worker:
    """An actor. With reports, it works in one thread and answers in others."""

    def __init__(self, work: Callable[..., Any], threads: int) -> None:
        self._work, self._threads = work, threads
        self._function: Callable[[Any], Any] | None = None
        self._mailbox, self._stop = Mailbox(), threading.Event()

    def greet(self) -> tuple[str, str]:
        """Its host and its version of clew, once the cluster has a place for it."""
        return socket.gethostname(), __version__

    def do(self, item: Any) -> Outcome:
        """One item of those that are spread; the first makes the function."""
        try:
            if self._function is None:
                self._function = self._work()
                if "torch" in sys.modules:
                    sys.modules["torch"].set_num_threads(self._threads)
            return Outcome(result=self._function(item))
        except ClewError as error:
            return Outcome(error=error)

    def run(self, _: Any) -> Outcome:
        """All that this worker finds to do."""
        try:
            return Outcome(result=self._work(self._mailbox, self._stop.is_set))
        except StoppedError:
            return Outcome(is_stopped=True)
        except ClewError as error:
            return Outcome(error=error)

    def report(self) -> "Report":
        return self._mailbox.collect()

    def stop(self) -> None:
        self._stop.set()


@dataclass(kw_only=True)
class Report:
    """A worker's news since the last report, and what it is doing now. `underway` counts the items
    in work, by the share that is done."""

    advanced: WorkAdvanced = WorkAdvanced(count=0)
    notes: list[str] = field(default_factory=list)
    started: WorkStarted | None = None
    step: str = ""
    underway: float = 0.0


class Mailbox:
    """The reporter of a worker. Many small events become one report."""

    def __init__(self) -> None:
        self._guard, self._news = threading.Lock(), Report()

    def __call__(self, event: Event, /) -> None:
        with self._guard:
            news = self._news
            match event:
                case WorkAdvanced() if news.started is not None:
                    before = news.advanced
                    news.advanced = WorkAdvanced(
                        count=before.count + event.count,
                        written_bytes=before.written_bytes + event.written_bytes,
                        tokens=before.tokens + event.tokens,
                    )
                    news.underway = max(0.0, news.underway - event.count)
                case WorkUnderway():
                    news.underway = event.count * event.share
                case WorkStarted():
                    news.started, news.step = event, ""
                case StepStarted():
                    news.step = event.name
                case WorkEnded():
                    news.step, news.underway = "", 0.0
                case WorkAdvanced() | OthersAdvanced():
                    pass  # parts of a step; others report for themselves
                case Note() | Event():
                    if event.level >= _INFO:
                        news.notes.append(str(event))

    def collect(self) -> Report:
        """The news, which are then no news any more."""
        with self._guard:
            news = self._news
            self._news = Report(started=news.started, step=news.step, underway=news.underway)
            return news


@dataclass(kw_only=True)
class _Member:
    """A worker as its watcher knows it. `call` is the answer that it owes: its greeting, or the
    outcome of the item `unit`."""

    number: int
    actor: Any
    call: Any
    report: Any = None
    unit: int | None = None
    host: str = ""
    count: int = 0
    underway: float = 0.0
    step: str = ""
    started: float | None = None  # when its work itself started

    @property
    def progress(self) -> WorkerProgress:
        seconds = time.monotonic() - self.started if self.started else 0.0
        rate = (self.count + self.underway) / max(1.0, seconds)
        return WorkerProgress(
            number=self.number, host=self.host, count=self.count, per_second=rate, step=self.step
        )


class _Pool:
    """The workers of a plan. `waiting` are the numbers of items that nobody works on; once it
    `is_shown`, what each worker does is reported."""

    method, concurrency, is_shown = "do", 1, True

    def __init__(
        self,
        cluster: Cluster,
        plan: WorkerPlan,
        work: Callable[..., Any],
        items: Sequence[Any],
        reporter: Reporter,
    ) -> None:
        self._ray, self.plan, self._reporter = cluster.ray, plan, reporter
        self._work, self._items = self._ray.put(work), items
        self._raylet = find_raylet(self._ray)
        self.waiting = deque(range(len(items)))
        self._members: dict[int, _Member] = {}
        self._began, self._deaths = time.monotonic(), 0
        self.is_stopping = self._has_told = False
        for number in range(1, plan.workers + 1):
            self._start(number)

    @property
    def is_busy(self) -> bool:
        return any(member.unit is not None for member in self._members.values())

    def give_out(self, end: int) -> None:
        """Give each free worker an item with a number below `end`."""
        for member in self._members.values():
            is_next = self.waiting and self.waiting[0] < end and not self.is_stopping
            if member.call is None and is_next:
                member.unit = self.waiting.popleft()
                member.call = getattr(member.actor, self.method).remote(self._items[member.unit])

    def look(self) -> Iterator[tuple[_Member, int, Outcome]]:
        """Wait a moment for outcomes. A worker that has died is replaced, and its item waits again.
        Raises ClewError if one after the other dies, or Ray itself has."""
        refuse_lost_raylet(self._raylet)
        calls = {member.call: member for member in self._members.values() if member.call}
        ended, _ = self._ray.wait(list(calls), timeout=_LOOK_SECONDS) if calls else ([], [])
        for call in ended:
            member = calls[call]
            unit, member.call, member.unit = member.unit, None, None
            try:
                found = self._ray.get(call)
            except self._ray.exceptions.RayActorError as error:
                self._replace(member, unit, error)
                continue
            if unit is None:
                self._welcome(member, *found)
            else:
                self._deaths = 0
                yield member, unit, found

    def report(self) -> None:
        """Say what the workers do."""
        if not self._has_told and time.monotonic() - self._began > _LONG_SECONDS:
            self._has_told = True
            placeless = sum(not member.host for member in self._members.values())
            if placeless:
                workers = counted(self.plan.workers, "worker")
                self._reporter(
                    Note(
                        f"{placeless} of {workers} wait for a place on the cluster: it has fewer "
                        "free cores or GPUs than they need"
                    )
                )
        members = self._members.values()
        if self.is_shown and members:
            self._reporter(
                WorkersAdvanced(
                    workers=tuple(member.progress for member in members),
                    underway=sum(member.underway for member in members),
                )
            )

    def end(self) -> None:
        """End the workers that still run, without asking them."""
        for member in self._members.values():
            self._ray.kill(member.actor)

    def _start(self, number: int) -> None:
        options = {"num_cpus": self.plan.threads, "num_gpus": self.plan.gpus}
        kind = self._ray.remote(Worker).options(max_concurrency=self.concurrency, **options)
        actor = kind.remote(self._work, self.plan.threads)
        self._members[number] = _Member(
            number=number,
            actor=actor,
            call=actor.greet.remote(),
            started=time.monotonic() if self.is_shown else None,
        )
        self._members = dict(sorted(self._members.items()))

    def _welcome(self, member: _Member, host: str, version: str) -> None:
        member.host = host
        if version != __version__:
            raise InputError(
                f"the workers on {host} have clew {version}, but this is {__version__}: install "
                "the same version everywhere."
            )

    def _replace(self, member: _Member, unit: int | None, error: Exception) -> None:
        """Start another worker; what the dead one did besides is taken over when its lease ends."""
        if unit is not None:
            self.waiting.appendleft(unit)
        if self.is_stopping:
            del self._members[member.number]
            return
        refuse_lost_raylet(self._raylet)
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS * self.plan.workers:
            lines = [line.strip() for line in str(error).split("\n") if line.strip()]
            raise ClewError(
                f"{counted(self._deaths, 'worker')} died one after the other, and nothing was "
                "finished in between. What the last one left: "
                f"{without_settings(lines[-1] if lines else repr(error))}"
            )
        where = f" on {member.host}" if member.host else ""
        self._reporter(Note(f"worker {member.number}{where} died; another one is started"))
        self._start(member.number)
        self._members[member.number].count = member.count


class _ReportingPool(_Pool):
    """Workers whose own events are passed on as those of one."""

    method, concurrency, is_shown = "run", 3, False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._said: set[str] = set()
        self._started: WorkStarted | None = None
        self._made, self._counted = 0, self._began

    def stop(self) -> None:
        """Ask all workers to stop."""
        if not self.is_stopping:
            self.is_stopping = True
            for member in self._members.values():
                member.actor.stop.remote()

    def listen(self) -> None:
        """Take what workers have reported; nothing is waited for."""
        for member in self._members.values():
            member.report = member.report or member.actor.report.remote()
            if self._ray.wait([member.report], timeout=0)[0]:
                self._take(member)

    def release(self, member: _Member) -> None:
        """Take the last reports of a worker that has ended, and end its process."""
        self._catch_up(member)
        self._ray.kill(member.actor)
        del self._members[member.number]

    def _catch_up(self, member: _Member) -> None:
        """Take all that a worker has reported until now: first what it was asked for before."""
        for _ in range(2):
            member.report = member.report or member.actor.report.remote()
            self._take(member)

    def count_others(self, count_done: Callable[[], int], *, now: bool = False) -> None:
        """Say what workers of other runs have done, and what was taken over of earlier runs."""
        is_due = now or time.monotonic() - self._counted > _COUNT_SECONDS
        if self._started is None or not is_due:
            return
        done = count_done()
        for member in self._members.values():  # or what these have finished were others' work
            self._catch_up(member)
        self._counted = time.monotonic()
        others = done - self._started.done - self._made
        if others > 0:
            self._made += others
            self._reporter(OthersAdvanced(count=others))

    def _take(self, member: _Member) -> None:
        try:
            report: Report = self._ray.get(member.report)
        except self._ray.exceptions.RayActorError:
            return  # it has died; its call says why
        member.report = None
        for note in report.notes:
            if note not in self._said:
                self._said.add(note)
                self._reporter(Note(note))
        member.step, member.underway = report.step, report.underway
        if report.started is not None:
            member.started = member.started or time.monotonic()
        if report.started is not None and self._started is None:
            self._reporter(WorkEnded())
            self._started, self.is_shown = report.started, True
            self._reporter(replace(report.started, estimate=""))
        if self._started is not None and report.advanced != WorkAdvanced(count=0):
            member.count += report.advanced.count
            self._deaths = 0
            # What a worker had reported before it died may be done once more.
            left = self._started.planned - self._started.done - self._made
            advanced = replace(report.advanced, count=min(left, report.advanced.count))
            self._made += advanced.count
            self._reporter(advanced)
