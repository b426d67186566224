"""Starts workers on Ray, replaces those that die, and reports what they do as one."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clew.base.errors import ClewError, InputError, without_settings
from clew.base.progress import (
    Note,
    OthersAdvanced,
    Reporter,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkerProgress,
    WorkersAdvanced,
    WorkStarted,
)
from clew.base.texts import counted
from clew.cluster.connecting import Cluster, refuse_lost_node
from clew.cluster.mailbox import Report
from clew.cluster.plan import CrewPlan
from clew.cluster.worker import Greeting, Outcome, Work, Worker
from clew.version import __version__

_LOOK_SECONDS = 0.25
_COUNT_SECONDS = 10.0
# Times that each worker may die without any having done something in between.
_MOST_DEATHS = 3
# Then it is worth saying that not all workers have a place yet.
LONG_SECONDS = 60.0


@dataclass(kw_only=True)
class _Member:
    """A worker as its watcher knows it. `looks` are the answers that it owes."""

    number: int
    actor: Any
    running: Any
    greeting: Any
    report: Any
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


def run_crew(
    cluster: Cluster,
    plan: CrewPlan,
    work: Work,
    reporter: Reporter,
    should_stop: Callable[[], bool],
    count_done: Callable[[], int] = lambda: 0,
) -> list[Outcome]:
    """Run `work` in every worker until each has ended; returns how. `count_done` says how many
    items are done in all, by workers of others too. Raises the first error of a worker, after the
    others have stopped in order, and ClewError if one worker after the other dies."""
    crew = _Crew(cluster, plan, work, reporter, count_done)
    try:
        return crew.run(should_stop)
    finally:
        crew.end()


class _Crew:
    def __init__(
        self,
        cluster: Cluster,
        plan: CrewPlan,
        work: Work,
        reporter: Reporter,
        count_done: Callable[[], int],
    ) -> None:
        self._ray, self._plan = cluster.ray, plan
        self._reporter, self._count_done = reporter, count_done
        self._work = self._ray.put(work)
        self._members: dict[Any, _Member] = {}
        self._outcomes: list[Outcome] = []
        self._said: set[str] = set()
        self._started: WorkStarted | None = None
        self._made = self._others = self._deaths = 0
        self._is_stopping = self._has_lost = self._has_told = False
        self._counted = self._began = time.monotonic()

    def run(self, should_stop: Callable[[], bool]) -> list[Outcome]:
        workers = counted(self._plan.workers, "worker")
        self._reporter(StepStarted(name=f"starting {workers}"))
        for number in range(1, self._plan.workers + 1):
            self._start(number)
        while self._members:
            if should_stop():
                self._stop()
            waiting = list(self._members)
            ended, _ = self._ray.wait(waiting, timeout=_LOOK_SECONDS)
            for member in list(self._members.values()):
                self._listen(member)
            for running in ended:
                self._finish(running)
            self._report()
        self._reporter(WorkEnded())
        failed = [outcome.error for outcome in self._outcomes if outcome.error is not None]
        if failed:
            raise failed[0]
        return self._outcomes

    def end(self) -> None:
        """Ends the workers that still run, without asking them."""
        for member in self._members.values():
            self._ray.kill(member.actor)

    def _start(self, number: int) -> None:
        options = {"num_cpus": self._plan.threads, "num_gpus": self._plan.gpus}
        actor = self._ray.remote(Worker).options(max_concurrency=3, **options).remote()
        running = actor.run.remote(self._work)
        self._members[running] = _Member(
            number=number,
            actor=actor,
            running=running,
            greeting=actor.greet.remote(),
            report=actor.report.remote(),
        )

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            for member in self._members.values():
                member.actor.stop.remote()

    def _listen(self, member: _Member) -> None:
        """Take what a worker has answered; nothing is waited for."""
        greeting: Greeting | None = self._answer(member.greeting)
        if greeting is not None and not member.host:
            member.host = greeting.host
            self._refuse_other_version(greeting)
        report: Report | None = self._answer(member.report)
        if report is not None:
            member.report = member.actor.report.remote()
            self._take(member, report)

    def _answer(self, reference: Any) -> Any:
        ready, _ = self._ray.wait([reference], timeout=0)
        try:
            return self._ray.get(reference) if ready else None
        except self._ray.exceptions.RayActorError:
            return None  # it has died; its run says why

    def _refuse_other_version(self, greeting: Greeting) -> None:
        if greeting.version != __version__:
            self._outcomes.append(
                Outcome(
                    error=InputError(
                        f"the workers on {greeting.host} have clew {greeting.version}, but this is "
                        f"{__version__}: install the same version everywhere."
                    )
                )
            )
            self._stop()

    def _take(self, member: _Member, report: Report) -> None:
        for note in report.notes:
            if note not in self._said:
                self._said.add(note)
                self._reporter(Note(note))
        member.step, member.underway = report.step, report.underway
        if report.started is not None and member.started is None:
            member.started = time.monotonic()
        if report.started is not None and self._started is None:
            self._reporter(WorkEnded())
            self._started = report.started
            self._reporter(
                WorkStarted(
                    noun=report.started.noun,
                    planned=report.started.planned,
                    done=report.started.done,
                    verb=report.started.verb,
                    waiting=report.started.waiting,
                )
            )
        if report.kept is not None:
            # What a worker of this run had done before it died was counted then.
            self._reporter(Note(str(report.kept)) if self._has_lost else report.kept)
        if report.advanced != WorkAdvanced(count=0):
            member.count += report.advanced.count
            self._made += report.advanced.count
            self._deaths = 0
            self._reporter(report.advanced)

    def _finish(self, running: Any) -> None:
        member = self._members.pop(running)
        try:
            outcome: Outcome = self._ray.get(running)
        except self._ray.exceptions.RayActorError as error:
            self._replace(member, error)
            return
        for reference in (member.report, member.actor.report.remote()):
            self._take_last(member, reference)
        self._ray.kill(member.actor)
        self._outcomes.append(outcome)
        if outcome.error is not None:
            self._stop()

    def _take_last(self, member: _Member, reference: Any) -> None:
        with suppress(self._ray.exceptions.RayActorError):
            self._take(member, self._ray.get(reference))

    def _replace(self, member: _Member, error: Exception) -> None:
        """Start another worker; the shard of the dead one is taken over when its lease ends."""
        where = f" on {member.host}" if member.host else ""
        if self._is_stopping:
            return
        refuse_lost_node(self._ray)
        self._deaths, self._has_lost = self._deaths + 1, True
        if self._deaths >= _MOST_DEATHS * self._plan.workers:
            self._outcomes.append(Outcome(error=ClewError(explain_deaths(self._deaths, error))))
            self._stop()
            return
        self._reporter(Note(f"worker {member.number}{where} died; another one is started"))
        self._start(member.number)

    def _report(self) -> None:
        if not self._has_told and time.monotonic() - self._began > LONG_SECONDS:
            self._has_told = True
            placeless = [member for member in self._members.values() if not member.host]
            tell_waiting(len(placeless), self._plan.workers, self._reporter)
        if self._started is None:
            return
        members = sorted(self._members.values(), key=lambda member: member.number)
        self._reporter(
            WorkersAdvanced(
                workers=tuple(member.progress for member in members),
                underway=sum(member.underway for member in members),
            )
        )
        if time.monotonic() - self._counted > _COUNT_SECONDS:
            self._counted = time.monotonic()
            others = self._count_done() - self._started.done - self._made - self._others
            if others > 0:
                self._others += others
                self._reporter(OthersAdvanced(count=others))


def tell_waiting(count: int, workers: int, reporter: Reporter) -> None:
    """Say that some workers have no place on the cluster yet."""
    if count:
        reporter(
            Note(
                f"{count} of {counted(workers, 'worker')} wait for a place on the cluster: it has "
                "fewer free cores or GPUs than they need"
            )
        )


def explain_deaths(deaths: int, error: Exception) -> str:
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return (
        f"{counted(deaths, 'worker')} died one after the other, and nothing was finished in "
        f"between. What the last one left: {without_settings(lines[-1] if lines else repr(error))}"
    )
