"""A damaged converted store keeps its intact rows and restores the others from the source files."""

from pathlib import Path

import numpy as np
import pytest

from clew.hallucination.legacy import convert_folder
from clew.hallucination.traces import TraceBatchLoader
from clew.storage.manifest import read_manifest
from clew.storage.repair import ensure_manifest, repair_store
from clew.storage.verify import verify_store
from tests.hallucination.legacy.old_files import make_record, write_pickle, write_traces
from tests.stores import flip_byte, forget_shards, offset_of, read_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def old(tmp_path: Path) -> Path:
    for batch in (0, 1):
        write_traces(tmp_path / "old", batch, count=3)
    return tmp_path / "old"


@pytest.fixture
def store(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One record batch per row, so that damage affects only one row."""
    monkeypatch.setattr("clew.hallucination.legacy.store._RECORD_BATCH_BYTES", 1)
    convert_folder(old, tmp_path / "new")
    return tmp_path / "new"


def damage_one_row(store: Path) -> None:
    shard = store / "batch_0001.arrow"
    flip_byte(shard, offset_of(shard, b"q101"))


def repair(store: Path) -> list[str]:
    return repair_store(store, verify_store(store))


def questions_of(store: Path) -> list[str]:
    return [trace["question_id"] for trace in TraceBatchLoader(store).iter_traces()]


def test_repair_keeps_intact_rows_and_reports_lost_ones(store: Path) -> None:
    damage_one_row(store)
    assert repair(store) == [
        "rewrote batch_0001.arrow with its 2 intact rows; 1 row lost, to be re-created"
    ]
    assert questions_of(store) == ["q0", "q1", "q2", "q100", "q102"]
    assert [problem.message for problem in verify_store(store)] == [
        'shard 1 is missing 1 of the 3 rows in its source file: run "clew convert" again'
    ]


def test_converting_again_restores_only_the_lost_rows(store: Path, old: Path) -> None:
    whole = {path.name: read_rows(path) for path in store.glob("batch_*")}
    first = (store / "batch_0000.arrow").stat()
    damage_one_row(store)
    repair(store)
    result = convert_folder(old, store)
    assert (result.files, result.already, result.traces) == (2, 1, 6)
    assert verify_store(store) == []
    assert (store / "batch_0000.arrow").stat().st_mtime_ns == first.st_mtime_ns
    found = {path.name: read_rows(path) for path in store.glob("batch_*")}
    np.testing.assert_equal(found, whole)


def test_a_repaired_shard_can_be_repaired_again(store: Path) -> None:
    damage_one_row(store)
    repair(store)
    shard = store / "batch_0001.arrow"
    flip_byte(shard, offset_of(shard, b"q102"))
    repair(store)
    assert questions_of(store) == ["q0", "q1", "q2", "q100"]


def test_a_shard_without_an_intact_row_is_converted_again(store: Path, old: Path) -> None:
    (store / "batch_0001.arrow").write_bytes(b"nothing")
    [line] = repair(store)
    assert line.endswith("to batch_0001.arrow.foreign; 3 rows lost, to be re-created")
    [problem] = verify_store(store)
    assert problem.message == (
        'shard 1 is missing 3 of the 3 rows in its source file: run "clew convert" again'
    )
    assert convert_folder(old, store).already == 1
    assert verify_store(store) == []


def test_a_damaged_shard_that_is_not_listed_keeps_its_rows(store: Path) -> None:
    damage_one_row(store)
    forget_shards(store, [1])
    assert repair(store) == ["rewrote batch_0001.arrow with its 2 intact rows: it was incomplete"]
    assert questions_of(store) == ["q0", "q1", "q2", "q100", "q102"]


def test_file_with_malformed_records_is_converted_once(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write_pickle(old / "batch_0000.pkl", [make_record(0), "text", make_record(2)])
    convert_folder(old, new)
    assert verify_store(new) == []
    assert convert_folder(old, new).already == 1


def test_lost_manifest_is_rebuilt_with_all_sources(store: Path, old: Path) -> None:
    before = read_manifest(store)
    (store / "manifest.json").unlink()
    assert ensure_manifest(store) is not None
    repair(store)
    assert read_manifest(store) == before
    assert convert_folder(old, store).already == 2


def test_lost_manifest_and_damaged_shard_are_repaired_together(store: Path, old: Path) -> None:
    damage_one_row(store)
    (store / "manifest.json").unlink()
    ensure_manifest(store)
    repair(store)
    assert questions_of(store) == ["q0", "q1", "q2", "q100", "q102"]
    assert convert_folder(old, store).already == 1
    assert questions_of(store) == ["q0", "q1", "q2", "q100", "q101", "q102"]
