"""Many events of a worker become few reports."""

from clew.base.progress import (
    Note,
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkKept,
    WorkStarted,
    WorkUnderway,
)
from clew.cluster.workers import Mailbox


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
    assert report.kept == WorkKept(noun="traces", count=3)
    assert (report.notes, report.step, report.underway) == (["a note"], "", 0.0)
    assert mailbox.collect().advanced == WorkAdvanced(count=0)
