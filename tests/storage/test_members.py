"""Every member of a manifest is checked when it is read: its type, its bounds, no name twice."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import StoreError
from clew.storage.manifest import build_manifest, parse_manifest, read_manifest
from clew.storage.reading import read_json
from clew.storage.repair import ensure_manifest, repair_store
from clew.storage.verify import verify_store
from clew.storage.writing import replace_json
from tests.stores import new_manifest, write_store

SHARD = {"file": "batch_0000.arrow", "rows": 12, "bytes": 9, "sha256": "0" * 64}
SOURCE = {"batch_number": 0, "file": "a.pkl", "sha256": "0" * 64, "records": 2}

INVALID: list[tuple[str, Any]] = [
    *(("planned_rows", value) for value in (-1, 10**18, 2**63, True, 1.5, "20", [])),
    *(("rows_per_shard", value) for value in (0, -1, 10**18, True, None, "12")),
    *(("kind", value) for value in (None, 5, ["traces"])),
    *(("settings", value) for value in (None, [], 5)),
    ("settings", {"sources": 5}),
    ("settings", {"sources": [5]}),
    ("settings", {"sources": [{**SOURCE, "records": -1}]}),
    ("settings", {"sources": [{**SOURCE, "sha256": 7}]}),
    ("settings", {"sources": [SOURCE, SOURCE]}),
    ("settings", {"command": ["convert"]}),
    ("settings", {"model": 5}),
    ("settings", {"model": {"id": ["m"]}}),
    ("settings", {"questions": "facts"}),
    ("settings", {"source": {"capture": {"model": []}}}),
    ("settings", {"machine": {"generation_batch": -1}}),
    ("settings", {"shape": {"layers": "3"}}),
    ("settings", {"size": True}),
    ("settings", {"answer_hidden": 1}),
    ("shards", None),
    ("shards", [5]),
    ("shards", [{"batch_number": 0, **SHARD, "rows": 2**63}]),
    ("shards", [{"batch_number": 0, **SHARD, "rows": -1}]),
    ("shards", [{"batch_number": 0, **SHARD, "bytes": 2**63}]),
    ("shards", [{"batch_number": 0, **SHARD, "sha256": "0" * 63}]),
    ("shards", [{"batch_number": 0, **SHARD, "more": 1}]),
    ("shards", [{"batch_number": False, **SHARD}]),
    ("shards", [{"batch_number": -1, **SHARD, "file": "batch_-001.arrow"}]),
    ("shards", [{"batch_number": 1, **SHARD}]),
    ("shards", [{"batch_number": 0, **SHARD, "file": "../batch_0000.arrow"}]),
    ("shards", [{"batch_number": 0, **SHARD}, {"batch_number": 0, **SHARD}]),
    *(("files", value) for value in ([], {"basis.arrow": 5}, {"../basis": "0" * 64})),
    *(("files", {name: "0" * 64}) for name in ("", "..", "a/b", "a\0b", "/etc/passwd")),
    *(("skipped", value) for value in (5, [5], [{"where": "q1"}], [{"reason": "long"}])),
    ("skipped", [{"file": "a", "reason": "b", "record": -1}]),
    ("skipped", [{"where": ["q"], "reason": "b"}]),
    *(("notes", value) for value in (5, [5], "text")),
    ("clew_version", 5),
    ("created", None),
    ("color", "red"),
]


def edit(store: Path, **members: Any) -> None:
    path = store / "manifest.json"
    replace_json(path, {**read_json(path), **members})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", shards=1)


@pytest.mark.parametrize(("name", "value"), INVALID, ids=lambda value: str(value)[:40])
def test_invalid_member_is_named(name: str, value: Any) -> None:
    raw = {**asdict(new_manifest(12)), "shards": [], "skipped": [], "notes": []}
    assert parse_manifest(raw, Path("manifest.json")) == build_manifest(raw)
    with pytest.raises(StoreError, match=r"manifest.json is damaged \(.*repair") as refused:
        parse_manifest({**raw, name: value}, Path("manifest.json"))
    assert len(str(refused.value)) < 1_000


def test_manifest_with_an_invalid_member_is_rebuilt(store: Path) -> None:
    before = read_manifest(store)
    edit(store, planned_rows=10**18)
    repair_store(store)
    assert read_manifest(store) == before


@pytest.mark.parametrize("text", ["NaN", "1e999", '"\\ud800"', "[" * 40 + "]" * 40, "1" * 5000])
def test_json_that_could_not_be_written_again_is_refused(store: Path, text: str) -> None:
    path = store / "manifest.json"
    path.write_text(path.read_text().replace('"a test"', text))
    with pytest.raises(StoreError, match=r"manifest.json cannot be read \(.*repair"):
        read_manifest(store)


@pytest.mark.parametrize(("planned", "size"), [(10**12, 1), (10**12, 12)])
def test_gaps_of_a_huge_plan_are_counted_not_listed(store: Path, planned: int, size: int) -> None:
    edit(store, planned_rows=planned, rows_per_shard=size, shards=[])
    (store / "batch_0000.arrow").unlink()
    gaps = verify_store(store)
    assert len(gaps) == 101
    assert sum(gap.lost_rows for gap in gaps) == planned
    more = planned - 100 * size
    assert gaps[-1].message == (
        f"{more:,} more rows have not been created yet: run the same extraction again"
    )


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_manifest_that_is_not_a_file_is_refused(store: Path, make: Any) -> None:
    (store / "manifest.json").unlink()
    make(store / "manifest.json")
    for use in (read_manifest, ensure_manifest):
        with pytest.raises(StoreError, match=r"cannot be read \(it is a (folder|pipe), not a file"):
            use(store)
