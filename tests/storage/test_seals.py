"""JSON files with a checksum over themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import StoreError
from clew.storage.manifest import read_manifest
from clew.storage.reading import read_json
from clew.storage.repair import ensure_manifest, repair_store
from clew.storage.writing import replace_json
from tests.stores import edit_json_file, without_checksum, write_store


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {"b": [1, None]}, "ü": "\n}"}])
def test_a_file_reads_back_without_its_checksum(tmp_path: Path, value: dict[str, Any]) -> None:
    path = tmp_path / "file.json"
    replace_json(path, value)
    assert read_json(path) == value
    assert list(json.loads(path.read_text())) == [*value, "clew_checksum"]


@pytest.mark.slow
def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 2)
    path, manifest = store / "manifest.json", read_manifest(store)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(StoreError):
            read_manifest(store)
    assert ensure_manifest(store) is not None  # rebuilt from the shards
    repair_store(store)
    assert read_manifest(store) == manifest


@pytest.mark.parametrize("edit", ["settings", "a space", "the checksum"])
def test_an_edited_manifest_says_what_to_do(tmp_path: Path, edit: str) -> None:
    store = write_store(tmp_path / "store", 1)
    path = store / "manifest.json"
    old, new = {
        "settings": ('"rows_per_shard": 12', '"rows_per_shard": 13'),
        "a space": ('"kind": ', '"kind":  '),
        "the checksum": ('"clew_checksum": "', '"clew_checksum": "0'),
    }[edit]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(StoreError, match=r"changed after clew wrote it.*a repair rebuilds"):
        read_manifest(store)


def test_a_manifest_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 1)
    manifest, path = read_manifest(store), store / "manifest.json"
    path.write_text(without_checksum(path))
    assert read_manifest(store) == manifest
    edit_json_file(path, lambda text: text.replace('"planned_rows": ', '"planned_rows":   '))
    assert read_manifest(store) == manifest
