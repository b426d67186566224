"""Every event is shown at a terminal, in a log, and by the library's own logger."""

import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import clew
from clew.base.cores import CoresBusy
from clew.base.cpu import ThreadsChosen
from clew.base.progress import (
    Event,
    Note,
    OthersAdvanced,
    StepStarted,
    WorkAdvanced,
    WorkEnded,
    WorkerProgress,
    WorkersAdvanced,
    WorkKept,
    WorkStarted,
    WorkUnderway,
    log_event,
    report_work,
)
from clew.cli.progress import TimeLeft
from clew.cli.renderer import Renderer
from clew.engine import (
    EpochEnded,
    ModelMeasured,
    PlanRequest,
    TrainingEnded,
    TrainingProgress,
    TrainingStarted,
    plan_hardware,
)
from clew.hallucination.comparison.fitting import (
    MethodEnded,
    MethodExcluded,
    MethodStarted,
    SeedStarted,
    StoreStarted,
)
from clew.hallucination.detectors.training.settings import NetworkEnded, NetworkStarted
from clew.pages.service import ServiceReady
from clew.patterns.training import Measuring, Prepared
from clew.patterns.training.config import TrainingChoice

COUNTED = {"number": 2, "count": 3}
ROW = {
    "epoch": 1,
    "step": 5,
    "train_loss": 0.5,
    "val_loss": 0.6,
    "val_auroc": 0.75,
    "val_accuracy": 0.8,
    "samples_per_second": 123.0,
    "data_wait_share": 0.1,
    "memory_bytes": 10**9,
}
PLAN = plan_hardware(PlanRequest(device="cpu"))
TRAINING = (
    TrainingStarted(plan=PLAN, epochs=2, steps=10, done_steps=3),
    TrainingProgress(
        epoch=1, step=4, samples_per_second=9.0, data_wait_share=0.0, memory_bytes=10**8, loss=None
    ),
    EpochEnded(row=ROW),
    TrainingEnded(),
)
WORK = (
    WorkStarted(noun="traces", planned=90, done=20, estimate="70 traces to make", waiting="soon"),
    WorkKept(noun="traces", count=5),
    WorkUnderway(count=65, share=0.5),
    WorkUnderway(count=65, share=1.0),
    WorkAdvanced(count=65, written_bytes=10**6, tokens=700),
    WorkEnded(),
)
WORKERS = (
    WorkStarted(noun="traces", planned=90),
    WorkersAdvanced(
        workers=(
            WorkerProgress(number=1, host="here", count=10, per_second=3.14),
            WorkerProgress(number=2, host="there", count=0, per_second=0.0, step="loading smollm2"),
        ),
        underway=4.5,
    ),
    OthersAdvanced(count=20),
    WorkAdvanced(count=10),
    WorkEnded(),
)
BUSY = CoresBusy(others=1.8, cores=2, threads=2)
STEPS = (
    StepStarted(name="loading smollm2"),
    WorkEnded(),
    BUSY,
    ThreadsChosen(busy=BUSY, threads=1, faster=3.14),
    StepStarted(name="fitting the basis", parts=8),
    WorkAdvanced(count=6),
    WorkEnded(),
)
NETWORKS = (
    NetworkStarted(title="LSTM", **COUNTED),
    *TRAINING,
    NetworkEnded(
        run={"model": "lstm", "test_auroc": 0.9, "best_epoch": 1, "epochs_run": 2}, is_new=True
    ),
)
COMPARISON = (
    StoreStarted(name="facts", **COUNTED),
    MethodStarted(title="GVAE", **COUNTED),
    SeedStarted(**COUNTED),
    *TRAINING,
    MethodEnded(
        row={"method": "gvae", "val_auroc": 0.8, "test_auroc": 0.7, "test_auroc_ci": (0.6, 0.8)},
        seconds=2.0,
        is_new=True,
    ),
    MethodStarted(title="SAPLMA", **COUNTED),
    MethodExcluded(title="SAPLMA", reason="it requires `draws=5`"),
)
ANY = TrainingChoice(value=16, reason="requested with `epochs`")
PHOTOS = (
    Prepared(
        folder=Path("photos"),
        classes={"cats": 3, "dogs": 4},
        splits={"train": 5, "validation": 1, "test": 1},
        excluded={"contradiction": 2, "no photos": 1, "empty": 1},
        other_files=2,
        excluded_file=Path("excluded.csv"),
        image_size=ANY,
        place=TrainingChoice(value="ram", reason="they fit"),
        flip=ANY,
        epochs=ANY,
        network=TrainingChoice(value="tiny", reason="for few photos"),
        method=ANY,
        started_from=Path("before"),
        new_classes=("dogs",),
    ),
    *TRAINING,
    ModelMeasured(metrics={"test_accuracy": 0.9}),
    Measuring(),
)
SERVICE = (
    Note("loading the model"),
    ServiceReady(address="http://127.0.0.1:8000/", served="smollm2 with the detector lstm"),
)
STORIES = {
    "notes": (Note("give `batch_size=8`"),),
    "work": WORK,
    "workers": WORKERS,
    "steps": STEPS,
    "networks": NETWORKS,
    "comparison": COMPARISON,
    "photos": PHOTOS,
    "service": SERVICE,
}


def show(events: tuple[Event, ...], *, width: int = 200, **options: Any) -> str:
    shown = io.StringIO()
    with Renderer(Console(file=shown, width=width, highlight=False, **options)) as reporter:
        for event in events:
            reporter(event)
    return shown.getvalue()


def test_every_event_of_the_package_is_tested() -> None:
    texts = (path.read_text(encoding="utf-8") for path in Path(clew.__file__).parent.rglob("*.py"))
    defined = {name for text in texts for name in re.findall(r"^class (\w+)\(Event\)", text, re.M)}
    assert defined == {type(event).__name__ for story in STORIES.values() for event in story}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_every_event_is_shown(
    story: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.cli.progress._LOG_EVERY_SECONDS", 0)
    out = show(STORIES[story], force_terminal=is_terminal)
    assert out and "`" not in out
    told = {
        "notes": ["give --batch-size 8"],
        "work": [
            "20 of 90 traces already done",
            "70 traces to make",
            "traces recovered from an interrupted run: 5",
        ],
        "workers": ["30/90 traces", "2 workers: 3.1/s, loading smollm2"],
        "steps": [
            "loading smollm2",
            "other processes use 1.8 of 2 cores: --threads 1 may be faster than 2",
            "1 thread is used, 3.1 times as fast",
            "fitting the basis",
        ],
        "networks": ["LSTM (2 of 3)", "resuming after step 3 of 10", "best epoch 1 of 2"],
        "comparison": ["trained on facts (2 of 3)", "2/3 GVAE: validation AUROC 0.800, test 0.700"],
        "photos": ["7 in 2 classes: cats (3), dogs (4)", "requested with --epochs", "plan.json"],
        "service": ["loading the model"],
    }
    assert not [text for text in told[story] if text not in out]


def test_narrow_terminal_keeps_bar_and_time_left() -> None:
    out = show(WORK, width=80, force_terminal=True, color_system=None)
    [*_, last] = [line for line in out.splitlines() if "90/90 traces, " in line]
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * 10 in last
    assert last.rstrip().endswith("s left") and "memory" not in last
    assert "memory" in show(WORK, force_terminal=True)


def test_log_shows_figures_of_work_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.cli.progress._LOG_EVERY_SECONDS", 0)
    assert "90/90 traces, " in show(WORK)
    assert "epoch 1/2, loss 0.500, validation loss 0.600, AUROC 0.750, 123 samples/s" in show(
        NETWORKS
    )
    assert "epoch 1/2, loss 0.500, validation loss 0.600, accuracy 0.800, 123 photos/s" in show(
        PHOTOS
    )
    assert "2/3 GVAE, seed 2 of 3: 2 epochs on cpu, resuming after step 3" in show(COMPARISON)
    assert "2/3 SAPLMA: excluded: it requires --draws 5" in show(COMPARISON)


def test_narrow_terminal_keeps_the_time_left_of_a_training() -> None:
    started, progress, epoch, ended = TRAINING
    events = (PHOTOS[0], started, epoch, progress, ended)
    out = show(events, width=80, force_terminal=True, color_system=None)
    [*_, last] = [line for line in out.splitlines() if "best 0.800, 9 photos/s, " in line]
    assert " left, 0% waiting" in last and "MB" not in last


def test_excluded_files_are_counted_in_words() -> None:
    assert "4 files (2 in two classes, 1 without photos, 1 empty)" in show(PHOTOS)


def test_bar_is_removed_after_an_error() -> None:
    """A second bar could not be drawn otherwise."""
    console = Console(file=io.StringIO(), force_terminal=True)
    for start in (WORK[0], NETWORKS[0], TRAINING[0], COMPARISON[1], Measuring()):
        with pytest.raises(KeyboardInterrupt), Renderer(console) as reporter:
            reporter(start)
            raise KeyboardInterrupt
    with console.status("drawn"):
        pass


@pytest.mark.parametrize("story", STORIES)
def test_every_event_is_logged(story: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="clew"):
        for event in STORIES[story]:
            log_event(event)
    lines = [record.getMessage() for record in caplog.records if record.name == "clew"]
    assert lines == [str(event) for event in STORIES[story]] and all(lines)


def test_end_of_work_is_reported_after_an_error() -> None:
    events: list[Event] = []
    started = WorkStarted(noun="photos", planned=2)
    with pytest.raises(KeyError), report_work(events.append, started):
        raise KeyError
    assert events == [started, WorkEnded()]


def test_log_of_short_epochs_has_few_lines() -> None:
    ended = [EpochEnded(row={**ROW, "epoch": number}) for number in range(1, 24)]
    out = show((TrainingStarted(plan=PLAN, epochs=23, steps=115, done_steps=0), *ended))
    assert "epoch 1/23" in out and "epoch 23/23" in out
    assert out.count("epoch ") < len(ended)


def test_time_left_does_not_jump() -> None:
    left, estimates = TimeLeft(), ((300, 0), (600, 1), (598, 2), (500, 99))
    told = [left.tell(estimate, 1000 + now, now) for estimate, now in estimates]
    assert told == ["5 min left", "5 min left", "5 min left", "8 min left"]


def test_first_estimate_of_items_that_come_in_batches_is_soon_forgotten() -> None:
    """The first of 64 is shown when it alone is done, after the time of all 64."""
    left = TimeLeft()
    assert left.tell(4500, 1, 2) == "75 min left"
    assert left.tell(69, 65, 4) == "70 s left"
    assert left.tell(67, 129, 6) == "67 s left"
