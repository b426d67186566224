"""A review killed at any moment: the next one completes what was started."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import DiskFullError
from clew.patterns.library.pattern_set import PatternSet
from clew.patterns.review import Review
from clew.patterns.review.journal import DecisionJournal, Decisions, LabeledFolder
from clew.storage.writing import append_to_file
from tests.patterns.review.making import NAMES, list_photos, reviewing

FIRST = ["cat/first.png", "dog/first.png", "fox/first.png"]


def in_a_process_that_dies(work: Callable[[], None]) -> None:
    """Runs `work` in a child process, which must end by SIGKILL."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def dies_before(kind: Any, name: str) -> None:
    setattr(kind, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


def dies_after(kind: Any, name: str) -> None:
    whole = getattr(kind, name)

    def do_and_die(*arguments: Any, **named: Any) -> None:
        whole(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, do_and_die)


@pytest.mark.parametrize("dies", [dies_before, dies_after])
@pytest.mark.parametrize(
    ("kind", "step"), [(Decisions, "_put"), (Decisions, "_take_away"), (LabeledFolder, "add")]
)
def test_decision_is_kept_once_it_was_made(
    animals: PatternSet, photos: Path, dies: Any, kind: Any, step: str
) -> None:
    content = (photos / "a.png").read_bytes()

    def work() -> None:
        dies(kind, step)
        with reviewing(animals, move=True) as review:
            review.correct("dog")

    in_a_process_that_dies(work)
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES[1:])
        assert list_photos(animals.photos) == sorted([*FIRST, "dog/a.png"])
        assert (animals.photos / "dog/a.png").read_bytes() == content
        assert not (photos / "a.png").exists()


@pytest.mark.parametrize("dies", [dies_before, dies_after])
@pytest.mark.parametrize("step", ["_restore", "_delete_target"])
def test_undo_is_completed_once_it_was_started(
    animals: PatternSet, photos: Path, dies: Any, step: str
) -> None:
    def work() -> None:
        with reviewing(animals, move=True) as review:
            review.approve()
            dies(Decisions, step)
            review.undo()

    in_a_process_that_dies(work)
    with reviewing(animals) as review:
        assert [question.name for question in review.queue.questions] == list(NAMES)
    assert list_photos(animals.photos) == FIRST and list_photos(photos) == sorted(NAMES)


def test_full_disk_changes_nothing(
    animals: PatternSet, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DiskFullError("the disk is full")

    with reviewing(animals, move=True) as review:
        monkeypatch.setattr(review.decisions.classes, "_put", full)
        with pytest.raises(DiskFullError):
            review.approve()
        assert _is_untouched(review, animals, photos)


def test_journal_that_cannot_be_written_change_nothing(
    animals: PatternSet, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0

    def full_at_the_second(path: Path) -> Any:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise DiskFullError("the disk is full")
        return append_to_file(path)

    with reviewing(animals, move=True) as review:
        monkeypatch.setattr("clew.patterns.review.journal.append_to_file", full_at_the_second)
        with pytest.raises(DiskFullError):
            review.approve()
        assert _is_untouched(review, animals, photos)
        writes = 1
        with pytest.raises(DiskFullError):
            review.skip()
        assert _is_untouched(review, animals, photos)
        review.correct("dog")
    assert len(DecisionJournal(animals.folder / "review.jsonl")) == 1
    assert list_photos(animals.photos) == sorted([*FIRST, "dog/a.png"])


def test_leftovers_of_a_killed_copy_are_removed(animals: PatternSet) -> None:
    (animals.photos / "cat" / ".clew-4194999-0.part").write_bytes(b"half")  # no such process
    with reviewing(animals):
        assert list_photos(animals.photos) == FIRST


def _is_untouched(review: Review, animals: PatternSet, photos: Path) -> bool:
    return (
        review.place == 0
        and list_photos(animals.photos) == FIRST
        and (photos / "a.png").exists()
        and len(DecisionJournal(animals.folder / "review.jsonl")) == 0
    )
