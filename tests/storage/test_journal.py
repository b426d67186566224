"""An append-only file with a checksum per line: nothing that was acknowledged is ever lost."""

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from clew.base.errors import StoreError
from clew.storage.journal import Journal
from tests.forking import FORKSERVER, fork


def read(path: Path) -> list[dict[str, object]]:
    return list(Journal(path).read_on())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "a.jsonl")
    for number in range(3):
        journal.append({"number": number, "text": "é\ud800\n"})
    return journal


def test_a_last_line_cut_anywhere_is_ignored_and_mended(journal: Journal) -> None:
    whole = journal.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(1, len(lines[2])):
        journal.path.write_bytes(whole[:-cut])
        assert [one["number"] for one in read(journal.path)] == [0, 1]
        journal.append({"number": 9})
        assert [one["number"] for one in read(journal.path)] == [0, 1, 9]


def test_any_other_damage_is_reported_with_its_line(journal: Journal) -> None:
    whole = bytearray(journal.path.read_bytes())
    chance = Random(1)
    for _ in range(50):
        place = chance.randrange(whole.index(b"\n"))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(7)
        journal.path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"line 1 of .* rename it to start over"):
            read(journal.path)


def test_a_reader_sees_what_others_add_and_that_the_file_was_replaced(journal: Journal) -> None:
    other = Journal(journal.path)
    assert other.is_replaced() and len(list(other.read_on())) == 3
    journal.append({"number": 3})
    assert not other.is_replaced() and [one["number"] for one in other.read_on()] == [3]
    journal.path.rename(journal.path.with_name("old"))
    assert other.is_replaced() and not list(other.read_on())
    journal.append({"number": 4})
    assert other.is_replaced() and [one["number"] for one in other.read_on()] == [4]


def test_a_link_or_a_full_disk_changes_nothing(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.path.read_bytes()
    link = journal.path.with_name("link.jsonl")
    link.symlink_to(journal.path)
    with pytest.raises(StoreError, match="symbolic link"):
        Journal(link).append({"number": 3})
    write = os.write

    def write_half(file: int, content: bytes) -> int:
        if len(content) < 30:
            raise OSError(28, "No space left on device")
        return write(file, content[: len(content) // 2])

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(StoreError, match="disk"):
        journal.append({"number": 3, "text": "a" * 100})
    assert journal.path.read_bytes() == before


def _append_for_ever(path: Path, told: Connection) -> None:
    journal, number = Journal(path), 0
    while True:
        journal.append({"number": number, "text": "a" * 5000})
        told.send(number)
        number += 1


@pytest.mark.slow
def test_what_was_added_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    chance = Random(2)
    for attempt in range(8):
        path = tmp_path / f"{attempt}.jsonl"
        here, there = FORKSERVER.Pipe()
        process = fork(_append_for_ever, path, there)
        process.start()
        for _ in range(chance.randrange(1, 60)):
            here.recv()
        process.kill()
        process.join()
        there.close()
        last = 0
        with suppress(EOFError):
            while True:
                last = here.recv()
        Journal(path).append({"number": -1})
        assert [one["number"] for one in read(path)][: last + 1] == list(range(last + 1))
