"""Verifying names every problem; repairing keeps what is intact and reports what is lost."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clew.base.errors import StoreError, StoreLockedError
from clew.storage.lock import Part, writer_lock
from clew.storage.manifest import read_manifest, write_manifest
from clew.storage.repair import add_shard, ensure_manifest, repair_store
from clew.storage.verify import Problem, find_stores, verify_store
from clew.storage.writer import ShardWriter
from tests.stores import (
    SCHEMA,
    assert_same_store,
    edit_json_file,
    flip_byte,
    forget_shards,
    new_manifest,
    offset_of,
    open_writer,
    read_rows,
    write_groups,
    write_store,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store")


def only_problem(store: Path) -> Problem:
    [problem] = verify_store(store)
    return problem


def damage_one_batch(store: Path) -> None:
    """One byte of the second record batch of shard 1: rows 16 to 19."""
    shard = store / "batch_0001.arrow"
    flip_byte(shard, offset_of(shard, b"question 17,"))


def finish_shard(store: Path, number: int) -> set[int]:
    """What the next extraction does with a shard; returns the rows it did not have to create."""
    writer = open_writer(store, number)
    write_groups(writer)
    add_shard(store, writer.finish())
    return writer.recovered_ids


def test_intact_store_has_no_problems(store: Path) -> None:
    seen: list[tuple[object, ...]] = []
    assert verify_store(store, lambda *shard: seen.append(shard)) == []
    assert seen == [(f"batch_{n:04d}.arrow", n + 1, 3) for n in range(3)]


def test_stores_of_a_project_are_all_found(store: Path, tmp_path: Path) -> None:
    for place in ("traces", "samples/answers", "samples/graphs"):
        shutil.copytree(store, tmp_path / "project" / place)
    found = find_stores(tmp_path / "project")
    assert [path.name for path in found] == ["answers", "graphs", "traces"]


def test_flipped_bytes_are_reported_with_shard_and_intact_rows(store: Path) -> None:
    damage_one_batch(store)
    problem = only_problem(store)
    assert (problem.kind, problem.batch_number, problem.lost_rows) == ("damaged", 1, 4)
    assert problem.message == (
        "shard batch_0001.arrow has changed content (SHA-256 mismatch); 8 of its 12 rows are intact"
    )


def test_repair_keeps_intact_rows_and_the_next_run_creates_the_rest(
    store: Path, tmp_path: Path
) -> None:
    damage_one_batch(store)
    [line] = repair_store(store)
    assert line == (
        "marked batch_0001.arrow as half-written, keeping its 8 intact rows; 4 rows lost, to "
        "be re-created"
    )
    assert [s.batch_number for s in read_manifest(store).shards] == [0, 2]
    assert finish_shard(store, 1) == {*range(12, 16), *range(20, 24)}
    assert verify_store(store) == []
    assert_same_store(store, write_store(tmp_path / "unharmed"))


@pytest.mark.slow
@pytest.mark.parametrize("keep_bytes", [0, 3, 100, 900, -1])
def test_truncated_shard_is_damaged(store: Path, keep_bytes: int) -> None:
    path = store / "batch_0002.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:keep_bytes])
    problem = only_problem(store)
    assert problem.kind == "damaged"
    assert f"instead of {len(content):,}" in problem.message
    repair_store(store, [problem])
    finish_shard(store, 2)
    assert verify_store(store) == []


def test_missing_shard_is_named_and_created_again(store: Path, tmp_path: Path) -> None:
    (store / "batch_0001.arrow").unlink()
    problem = only_problem(store)
    assert problem.message == (
        "shard batch_0001.arrow is missing; the manifest says it has 12 rows"
    )
    repair_store(store, [problem])
    assert only_problem(store).kind == "gap"
    finish_shard(store, 1)
    assert_same_store(store, write_store(tmp_path / "unharmed"))


def test_unlisted_shard_is_adopted(store: Path, tmp_path: Path) -> None:
    forget_shards(store, [2])
    problems = verify_store(store)
    assert [p.kind for p in problems] == ["unlisted"]
    assert repair_store(store, problems) == ["added batch_0002.arrow with 12 rows to the manifest"]
    assert verify_store(store) == []
    assert_same_store(store, write_store(tmp_path / "unharmed"))


def test_unlisted_damaged_shard_is_not_adopted_as_intact(store: Path) -> None:
    damage_one_batch(store)
    forget_shards(store, [1])
    repair_store(store, verify_store(store))
    assert only_problem(store).kind == "part"
    assert finish_shard(store, 1) == {*range(12, 16), *range(20, 24)}


def test_unlisted_shard_without_its_end_becomes_half_written(store: Path) -> None:
    path = store / "batch_0002.arrow"
    path.write_bytes(path.read_bytes()[:-9])
    forget_shards(store, [2])
    [line] = repair_store(store, verify_store(store))
    assert line == (
        "marked batch_0002.arrow as half-written, keeping its 12 intact rows: it was incomplete"
    )
    assert finish_shard(store, 2) == set(range(24, 36))


def test_half_written_shard_is_reported_with_its_rows(store: Path) -> None:
    write_manifest(store, replace(read_manifest(store), planned_rows=48))
    writer = open_writer(store, 3)
    write_groups(writer)
    writer.abandon()
    assert only_problem(store).message == (
        "batch_0003.arrow.part is half-written, with 12 complete rows: "
        "run the same extraction again to finish it"
    )


def test_unfinished_shard_is_reported_once(store: Path) -> None:
    write_manifest(store, replace(read_manifest(store), planned_rows=60))
    writer = open_writer(store, 3)
    write_groups(writer)
    writer.abandon()
    assert [(p.kind, p.batch_number) for p in verify_store(store)] == [("part", 3), ("gap", 4)]


@pytest.mark.parametrize("name", ["batch_0001.arrow.bak", "batch_1.arrow", "batch_old.arrow"])
def test_files_with_other_names_are_left_alone(store: Path, name: str) -> None:
    (store / name).write_bytes(b"mine")
    assert verify_store(store) == []


def test_problem_with_one_row_uses_singular(store: Path) -> None:
    write_manifest(store, replace(read_manifest(store), planned_rows=37))
    assert only_problem(store).message.startswith("shard 3 (1 row) has not been created yet")


def test_rows_not_created_yet_are_reported_as_a_gap(store: Path) -> None:
    write_manifest(store, replace(read_manifest(store), planned_rows=41))
    problem = only_problem(store)
    assert (problem.kind, problem.lost_rows) == ("gap", 5)
    assert problem.message.startswith("shard 3 (5 rows) has not been created yet")


def test_incomplete_last_shard_is_reported_as_a_gap(tmp_path: Path) -> None:
    manifest = replace(new_manifest(20), rows_per_shard=20)
    store = write_store(tmp_path / "store", shards=1, manifest=manifest)
    assert only_problem(store).lost_rows == 8


def test_wrong_count_in_the_manifest_is_detected(store: Path) -> None:
    manifest = read_manifest(store)
    wrong = replace(manifest.shards[1], rows=13)
    write_manifest(store, replace(manifest, shards=(manifest.shards[0], wrong, manifest.shards[2])))
    assert (
        only_problem(store).message
        == "shard batch_0001.arrow has 12 rows, but the manifest says 13"
    )


def test_changed_side_file_cannot_be_repaired(store: Path) -> None:
    (store / "basis.arrow").write_bytes(b"something")
    write_manifest(store, replace(read_manifest(store), files={"basis.arrow": "0" * 64}))
    problem = only_problem(store)
    assert problem.message.startswith("basis.arrow has changed since it was written: restore it")
    assert repair_store(store, [problem]) == []


def test_repair_does_not_wait_for_a_running_writer(store: Path) -> None:
    with writer_lock(store, Part(index=2, count=3)), pytest.raises(StoreLockedError):
        repair_store(store, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b'{"format": "clew-st',
        b"\xff\xfe\x00garbage",
        b"[]",
        b'{"format": "clew-store", "schema_version": 1}',
        b'{"format": "clew-store", "schema_version": 1, "kind": "samples", "settings": {}, '
        b'"rows_per_shard": 12, "planned_rows": 36, "shards": [{"file": "batch_0000.arrow"}]}',
    ],
    ids=["gone", "empty", "cut", "binary", "a list", "no fields", "half a shard entry"],
)
def test_lost_manifest_is_rebuilt_from_the_shards(
    store: Path, tmp_path: Path, content: bytes | None
) -> None:
    before = read_manifest(store)
    path = store / "manifest.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StoreError):
        verify_store(store)
    assert ensure_manifest(store) is not None
    repair_store(store, verify_store(store))
    assert verify_store(store) == []
    assert read_manifest(store) == before
    assert_same_store(store, write_store(tmp_path / "unharmed"))


def test_valid_manifest_is_left_alone(store: Path) -> None:
    before = (store / "manifest.json").read_bytes()
    assert ensure_manifest(store) is None
    assert (store / "manifest.json").read_bytes() == before


def test_manifest_of_newer_version_is_not_overwritten(store: Path) -> None:
    path = store / "manifest.json"
    edit_json_file(path, lambda text: text.replace('"schema_version": 1', '"schema_version": 2'))
    newer = path.read_text()
    with pytest.raises(
        StoreError, match="schema version 2, but this version of clew reads version 1"
    ):
        ensure_manifest(store)
    assert path.read_text() == newer


def test_manifest_cannot_be_rebuilt_without_a_readable_shard(store: Path) -> None:
    (store / "manifest.json").unlink()
    for shard in store.glob("batch_*.arrow"):
        shard.write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"none of its shards \(3\) can be read either"):
        ensure_manifest(store)


def test_shards_without_settings_are_not_reported_as_unreadable(
    tmp_path: Path,
) -> None:
    write_groups(writer := ShardWriter(tmp_path, 0, SCHEMA, id_column="global_example_id"))
    writer.finish()
    with pytest.raises(
        StoreError, match="its shards do not record how they were created: 1 of 1 can"
    ):
        ensure_manifest(tmp_path)


def test_repaired_rows_equal_the_rows_written(store: Path) -> None:
    whole = read_rows(store / "batch_0001.arrow")
    damage_one_batch(store)
    repair_store(store, verify_store(store))
    finish_shard(store, 1)
    assert read_rows(store / "batch_0001.arrow") == whole
