"""A capture never says "done" over shards that are not its own, and never adopts such rows."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import StoreError
from clew.storage.manifest import read_manifest
from clew.storage.repair import add_shard, repair_store
from clew.storage.verify import verify_store
from tests.stores import assert_same_store

pytestmark = pytest.mark.slow


@pytest.fixture
def stores(capture: Any, tmp_path: Path) -> tuple[Path, Path]:
    """Two stores of the same model and questions, with another prompt."""
    capture("mine", num_samples=20, shard_size=10)
    capture("yours", num_samples=20, shard_size=10, prompt="Q {question}", max_new_tokens=5)
    return tmp_path / "mine", tmp_path / "yours"


def test_rows_of_another_capture_are_moved_aside_and_captured_again(
    stores: tuple[Path, Path], capture: Any, tmp_path: Path
) -> None:
    mine, yours = stores
    unharmed = shutil.copytree(mine, tmp_path / "unharmed")
    shutil.copy(yours / "batch_0000.arrow", mine)
    with pytest.raises(StoreError, match="batch_0000.arrow .*(bytes, but the manifest|other set)"):
        capture("mine", num_samples=20, shard_size=10)
    assert [p.kind for p in verify_store(mine)] == ["foreign"]
    repair_store(mine)
    assert capture("mine", num_samples=20, shard_size=10).traces_made == 10
    assert verify_store(mine) == []
    assert_same_store(mine, unharmed)
    assert (mine / "batch_0000.arrow.foreign").exists()


def test_half_written_rows_of_another_capture_are_not_adopted(
    stores: tuple[Path, Path], capture: Any
) -> None:
    mine, yours = stores
    shutil.copy(yours / "batch_0001.arrow", mine / "batch_0002.arrow.part")
    with pytest.raises(StoreError, match=r"batch_0002.arrow.part .* was written with other set"):
        capture("mine", num_samples=30, shard_size=10)
    assert (mine / "batch_0002.arrow.part").exists()


def copy_over(store: Path) -> None:
    shutil.copy(store / "batch_0001.arrow", store / "batch_0000.arrow")
    first, second, *_ = read_manifest(store).shards
    add_shard(store, replace(second, batch_number=0, file=first.file))


def truncate(store: Path) -> None:
    with (store / "batch_0000.arrow").open("r+b") as file:
        file.truncate(100)


def remove(store: Path) -> None:
    (store / "batch_0000.arrow").unlink()


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        remove(store)
        make(store / "batch_0000.arrow")

    return damage


DAMAGE = {
    "copied over": copy_over,
    "truncated": truncate,
    "missing": remove,
    "folder": replace_by(os.mkdir),
    "pipe": replace_by(os.mkfifo),
    "link": replace_by(lambda path: path.symlink_to("/etc/hostname")),
    "broken link": replace_by(lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_finished_capture_is_not_called_done_after_damage(
    capture: Any, store: Path, damage: str
) -> None:
    DAMAGE[damage](store)
    with pytest.raises(StoreError, match=r"batch_0000.arrow.*repair"):
        capture("store")
    repair_store(store)
    assert {p.is_unfinished for p in verify_store(store)} == {True}
