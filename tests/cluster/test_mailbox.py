"""Many events of a worker become few reports, and the reports of all workers one count."""

from types import SimpleNamespace
from typing import Any

from clew.base.progress import (
    Event,
    Note,
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkersAdvanced,
    WorkKept,
    WorkStarted,
    WorkUnderway,
)
from clew.cluster.connection import Cluster, WorkerPlan
from clew.cluster.workers import Mailbox, _ReportingPool
from tests.events import pick


def test_events_are_summed_up_between_two_reports() -> None:
    mailbox = Mailbox()
    mailbox(StepStarted(name="loading smollm2", parts=3))
    mailbox(WorkAdvanced(count=2))  # parts of the step are no traces
    assert mailbox.collect().step == "loading smollm2"
    mailbox(WorkEnded())
    mailbox(WorkStarted(noun="traces", planned=90))
    mailbox(WorkUnderway(count=8, share=0.5))
    assert mailbox.collect().underway == 4
    for event in (
        WorkAdvanced(count=8, tokens=100, written_bytes=10),
        WorkAdvanced(count=4, tokens=50, written_bytes=5),
        WorkKept(noun="traces", count=3),
        OthersAdvanced(count=20),
        Note("a note"),
    ):
        mailbox(event)
    report = mailbox.collect()
    assert report.advanced == WorkAdvanced(count=12, tokens=150, written_bytes=15)
    assert report.started == WorkStarted(noun="traces", planned=90)
    recovered = "traces recovered from an interrupted run: 3"
    assert (report.notes, report.step, report.underway) == ([recovered, "a note"], "", 0.0)
    assert mailbox.collect().advanced == WorkAdvanced(count=0)


class Actor:
    """A worker in this process, as Ray would call it."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.report = SimpleNamespace(remote=self.mailbox.collect)
        self.greet = SimpleNamespace(remote=lambda: None)


def pool_of(actors: list[Actor], events: list[Event]) -> _ReportingPool:
    left = iter(actors)
    kind = SimpleNamespace(remote=lambda *_: next(left))
    ray: Any = SimpleNamespace(
        put=lambda value: value,
        remote=lambda _: SimpleNamespace(options=lambda **_: kind),
        wait=lambda calls, **_: (calls, []),
        get=lambda call: call,
        kill=lambda _: None,
        nodes=list,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=str),
        exceptions=SimpleNamespace(RayActorError=ZeroDivisionError),
    )
    plan = WorkerPlan(workers=len(actors), threads=1, gpus=0, reason="a test")
    cluster = Cluster(ray=ray, cores=2, gpus=0, nodes=1)
    return _ReportingPool(cluster, plan, print, range(len(actors)), events.append)


def test_workers_are_counted_once_whoever_reports_first() -> None:
    events: list[Event] = []
    actors = [Actor(), Actor()]
    pool = pool_of(actors, events)
    for actor in actors:
        actor.mailbox(WorkStarted(noun="traces", planned=90, done=10))
    pool.listen()
    for actor in actors:
        actor.mailbox(WorkAdvanced(count=30))
    actors[0].mailbox(WorkKept(noun="traces", count=6))
    pool.count_others(lambda: 76, now=True)  # the six of an earlier run are finished, too
    assert [event.count for event in pick(events, WorkAdvanced)] == [30, 30]
    assert [event.count for event in pick(events, OthersAdvanced)] == [6]
    for actor in actors:  # one of them does again what another had reported before it died
        actor.mailbox(WorkAdvanced(count=10))
    pool.report()
    for member in [*pool._members.values()]:
        pool.release(member)
    pool.count_others(lambda: 90, now=True)
    pool.report()
    made = [*pick(events, WorkAdvanced), *pick(events, OthersAdvanced)]
    assert 10 + sum(event.count for event in made) == 90
    assert all(event.workers for event in pick(events, WorkersAdvanced))
