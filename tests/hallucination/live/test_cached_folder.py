"""What takes minutes to build is built once, whatever happens to the process that builds it."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import StoppedError, StoreError
from clew.base.progress import Event, ignore_event
from clew.hallucination.live.built_in_detector import CachedFolder
from tests.engine.children import start, wait
from tests.events import notes


def read(folder: Path) -> str:
    """What is kept here: a text, damaged unless it starts with "fine"."""
    text = (folder / "text").read_text()
    if not text.startswith("fine"):
        raise StoreError("it is damaged")
    return text


def make_cache(root: Path, events: list[Event] | None = None) -> CachedFolder[str]:
    reporter = ignore_event if events is None else events.append
    return CachedFolder(root=root, name="thing", load=read, reporter=reporter)


def build_text(text: str) -> Callable[[Path], Path]:
    def build(work: Path) -> Path:
        steps = work / "steps"
        steps.mkdir(parents=True, exist_ok=True)
        count = len(list(steps.iterdir()))
        (steps / str(count)).touch()
        (work / "made").mkdir(exist_ok=True)
        (work / "made" / "text").write_text(f"{text} after {count} earlier tries")
        return work / "made"

    return build


def fail(_work: Path) -> Path:
    raise AssertionError("it is built already")


def go_on() -> bool:
    return False


def test_thing_is_built_once_and_what_it_was_made_from_is_removed(tmp_path: Path) -> None:
    cached = make_cache(tmp_path / "cache")
    assert cached.get(build_text("fine"), go_on) == "fine after 0 earlier tries"
    assert cached.get(fail, go_on) == "fine after 0 earlier tries"
    kept = {path.name for path in (tmp_path / "cache").iterdir()} - {".thing.lock"}
    assert kept == {"thing"}


def _build_and_die(root: Path) -> None:
    def build(work: Path) -> Path:
        build_text("fine")(work)
        os.kill(os.getpid(), signal.SIGKILL)
        return work

    make_cache(root).get(build, go_on)


def test_next_process_resumes_after_a_kill(tmp_path: Path) -> None:
    assert wait(start(_build_and_die, tmp_path)) == -signal.SIGKILL
    assert make_cache(tmp_path).get(build_text("fine"), go_on) == "fine after 1 earlier tries"


def test_damaged_thing_is_built_again(tmp_path: Path) -> None:
    events: list[Event] = []
    cached = make_cache(tmp_path, events)
    cached.get(build_text("fine"), go_on)
    (cached.folder / "text").write_text("damaged")
    assert cached.get(build_text("fine"), go_on).startswith("fine")
    assert "cannot be used and is built again (it is damaged)" in notes(events)[0]


def test_feedback_stays_when_a_damaged_thing_is_built_again(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    cache.get(build_text("fine"), go_on)
    (cache.folder / "feedback.jsonl").write_text("labels")
    (cache.folder / "text").write_text("broken")
    cache.get(build_text("fine"), go_on)
    assert (cache.folder / "feedback.jsonl").read_text() == "labels"


def test_work_that_cannot_be_resumed_is_repeated(tmp_path: Path) -> None:
    def build(work: Path) -> Path:
        if (work / "steps").exists():
            raise StoreError("a shard is damaged")
        return build_text("fine")(work)

    cached = make_cache(tmp_path)
    build_text("fine")(tmp_path / ".thing.part")
    assert cached.get(build, go_on) == "fine after 0 earlier tries"


def _build_when_told(root: Path, connection: Any) -> None:
    def build(work: Path) -> Path:
        connection.send("building")
        connection.recv()
        return build_text("fine")(work)

    make_cache(root).get(build, go_on)


def test_second_process_waits_for_the_first(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = start(_build_when_told, tmp_path, theirs)
    events: list[Event] = []
    try:
        assert ours.recv() == "building"
        with pytest.raises(StoppedError):
            make_cache(tmp_path, events).get(fail, lambda: bool(notes(events)))
        ours.send("finish")
        assert make_cache(tmp_path).get(fail, go_on).startswith("fine")
    finally:
        process.kill()
        process.join()
    assert notes(events) == ["another process is already building it: waiting"]
