"""Two processes never write the same shard, and a dead one never blocks the others."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreLockedError
from clew.storage.lock import Part, writer_lock


def hold_lock(store: Path, index: int, count: int, pipe: Connection) -> None:
    with writer_lock(store, Part(index=index, count=count)):
        pipe.send("held")
        pipe.recv()


class OtherWriter:
    """A real process that holds the lock of a part until it is asked to stop, or killed."""

    def __init__(self, store: Path, index: int = 1, count: int = 1) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=hold_lock, args=(store, index, count, theirs))
        self.process.start()
        assert self._pipe.recv() == "held"

    def __enter__(self) -> "OtherWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self._pipe.send("end")
        self.process.join()


@pytest.mark.slow
def test_second_writer_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    with (
        OtherWriter(tmp_path) as other,
        pytest.raises(StoreLockedError, match=f"process {other.process.pid} on "),
        writer_lock(tmp_path, Part()),
    ):
        pass


def test_lock_is_free_again_after_use(tmp_path: Path) -> None:
    for _ in range(2):
        with writer_lock(tmp_path, Part()):
            pass


@pytest.mark.slow
def test_parts_of_the_same_split_run_side_by_side(tmp_path: Path) -> None:
    with OtherWriter(tmp_path, 1, 2), writer_lock(tmp_path, Part(index=2, count=2)):
        pass


@pytest.mark.slow
def test_different_number_of_parts_is_refused(tmp_path: Path) -> None:
    message = r"same number of parts \(this one requested part 2/3\)"
    with (
        OtherWriter(tmp_path, 1, 2),
        pytest.raises(StoreLockedError, match=message),
        writer_lock(tmp_path, Part(index=2, count=3)),
    ):
        pass


@pytest.mark.slow
def test_killed_writer_does_not_block_the_next(tmp_path: Path) -> None:
    with OtherWriter(tmp_path) as other:
        other.process.kill()
        other.process.join()
        with writer_lock(tmp_path, Part()):
            owner = (tmp_path / ".writer-1-of-1.json").read_text()
            assert f'"pid": {os.getpid()}' in owner


def test_parts_cover_every_batch_exactly_once() -> None:
    parts = [Part.parse(f"{i}/3") for i in (1, 2, 3)]
    owners = [[p.index for p in parts if p.owns(number)] for number in range(6)]
    assert owners == [[1], [2], [3], [1], [2], [3]]
    assert str(parts[1]) == "2/3"


@pytest.mark.parametrize(
    "text", ["", "2", "a/b", "1/2/3", "-1/2", "1 of 2", "1.0/2", "1/" + "9" * 5000]
)
def test_malformed_part_is_refused(text: str) -> None:
    with pytest.raises(InputError, match='part is .*: write it as I/N, for example `part="2/8"`'):
        Part.parse(text)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0"])
def test_part_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=rf'part is "{text}": write it .* from 1 to N'):
        Part.parse(text)
