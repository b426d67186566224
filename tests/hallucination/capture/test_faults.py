"""Whatever ends a capture, the same command again produces the store of an uninterrupted run."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew.storage.manifest import read_manifest
from clew.storage.verify import verify_store
from clew.storage.writer import read_intact_batches
from tests import disks
from tests.builders import write_lines, write_questions
from tests.disks import bytes_in
from tests.hallucination.capture.processes import ClewProcess
from tests.stores import assert_same_store

pytestmark = pytest.mark.slow

QUESTIONS = 60
SETTINGS = (
    "--self-evaluation",
    *("--batch-size", "10", "--generation-batch", "4"),
    *("--node-dim", "4", "--edges-per-token", "4", "--device", "cpu"),
    # Square brackets are markup in rich; they must be printed unchanged.
    *("--prompt", "[INST] {question} [/INST]"),
)
KINDS = {"generated": ("--max-new-tokens", "6"), "given": ("--answers", "given")}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each with an answer that can be read."""
    path = write_questions(tmp_path_factory.mktemp("many") / "questions.jsonl", QUESTIONS)
    records = map(json.loads, path.read_text().splitlines())
    return write_lines(path, [one | {"response": one["question"][:-5]} for one in records])


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def start(
    request: Any, model_folder: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Starts `clew extract` into a store, with answers of either kind."""
    outputs = tmp_path_factory.mktemp("outputs")

    def begin(out: Path, *more: str) -> ClewProcess:
        where = ["--model", str(model_folder), "--questions", str(questions), "--out", str(out)]
        number = len(list(outputs.iterdir()))
        output = outputs / f"{number}.txt"
        output.touch()
        return ClewProcess(["extract", *where, *request.param, *SETTINGS, *more], output)

    return begin


@pytest.fixture(scope="module")
def unbroken(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "store"
    finish(start, out)
    return out


def finish(start: Any, out: Path) -> str:
    with start(out) as process:
        assert process.wait() == 0, process.output
        return process.output


def assert_whole(store: Path, unbroken: Path) -> None:
    assert verify_store(store) == []
    assert_same_store(store, unbroken)
    left = [path.name for path in store.iterdir() if path.suffix in (".part", ".recovered")]
    assert left == []


def rows_on_disk(store: Path) -> int:
    finished = read_manifest(store).rows
    parts = store.glob("*.part")
    return finished + sum(b.num_rows for part in parts for b in read_intact_batches(part))


def has_rows(store: Path) -> bool:
    """Whether a run that goes on has written a trace."""
    try:
        return (store / "manifest.json").exists() and rows_on_disk(store) > 0
    except FileNotFoundError:  # a part has become a shard in between
        return True


@pytest.mark.parametrize("moment", [".writer-1-of-1.json", "manifest.json", "basis.arrow"])
def test_resume_after_kill_during_preparation_gives_identical_store(
    start: Any, unbroken: Path, tmp_path: Path, moment: str
) -> None:
    store = tmp_path / "store"
    with start(store) as process:
        assert process.wait_until((store / moment).exists)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finish(start, store)
    assert_whole(store, unbroken)


def test_resume_after_kill_while_copying_old_rows_gives_identical_store(
    start: Any, unbroken: Path, tmp_path: Path
) -> None:
    """Three times in a row, as soon as the file with the old rows appears."""
    store = tmp_path / "store"
    with start(store) as process:
        assert process.wait_until(lambda: has_rows(store))
        process.send(signal.SIGKILL)
    for _ in range(3):
        with start(store) as process:
            process.wait_until(lambda: any(store.glob("*.recovered")))
            process.send(signal.SIGKILL)
    finish(start, store)
    assert_whole(store, unbroken)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_interrupt_stops_cleanly_and_says_how_to_resume(
    start: Any, unbroken: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    store = tmp_path / "store"
    with start(store) as process:
        assert process.wait_until(lambda: has_rows(store))
        process.send(number)
        assert process.wait() == code, process.output
        said = process.output
    assert "stopping: finishing the current batch of answers" in said
    stopped = re.search(r"stopped; (\d+) new traces? saved. To resume: (.*)", said)
    assert stopped, said
    assert int(stopped[1]) == rows_on_disk(store) < QUESTIONS
    assert stopped[2].startswith("clew extract --model ")
    assert stopped[2].endswith("--prompt '[INST] {question} [/INST]'")
    assert "Traceback" not in said
    said = finish(start, store)
    assert "traces already done" in said or "recovered from an interrupted run" in said
    assert_whole(store, unbroken)


def test_second_interrupt_stops_immediately(start: Any, unbroken: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with start(store) as process:
        assert process.wait_until(lambda: has_rows(store))
        process.send(signal.SIGINT)
        assert process.wait_until(lambda: "again to stop immediately" in process.output)
        process.send(signal.SIGINT)
        assert process.wait() == 130, process.output
        assert "Traceback" not in process.output
    finish(start, store)
    assert_whole(store, unbroken)


def test_second_process_on_the_same_store_is_rejected(
    start: Any, unbroken: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with start(store) as first:
        assert first.wait_until(lambda: bytes_in(store) > 20_000)
        first.halt(store)
        with start(store) as second:
            assert second.wait() == 1
            assert f"process {first.pid} on " in second.output
            assert "Traceback" not in second.output
        first.send(signal.SIGCONT)
        assert first.wait() == 0
    assert_whole(store, unbroken)


def test_parts_can_run_in_parallel(start: Any, unbroken: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with start(store, "--part", "1/2") as one, start(store, "--part", "2/2") as two:
        assert (one.wait(), two.wait()) == (0, 0), one.output + two.output
    assert_whole(store, unbroken)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An uninterrupted run needs about half of it."""
    with disks.small_disk(tmp_path / "disk", megabytes=2) as disk:
        yield disk


def test_full_disk_stops_run_and_it_resumes_once_there_is_space(
    start: Any, unbroken: Path, small_disk: Path
) -> None:
    store, other = small_disk / "store", small_disk / "somebody_elses_file"
    with start(store) as process:
        assert process.wait_until(lambda: has_rows(store))
        process.send(signal.SIGSTOP)
        fill(other)
        process.send(signal.SIGCONT)
        assert process.wait() == 1, process.output
        said = process.output
    assert "is full. Everything written so far is kept. Free some space" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert rows_on_disk(store) > 0
    other.unlink()
    finish(start, store)
    assert_whole(store, unbroken)


def test_disk_that_is_full_from_the_start_is_an_error(
    start: Any, unbroken: Path, small_disk: Path
) -> None:
    store, other = small_disk / "store", small_disk / "somebody_elses_file"
    fill(other)
    with start(store) as process:
        assert process.wait() == 1
        assert "Traceback" not in process.output
        assert "Free some space" in process.output
    other.unlink()
    finish(start, store)
    assert_whole(store, unbroken)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
        os.fsync(file.fileno())
