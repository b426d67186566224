"""Files are replaced atomically, and nothing is ever written through a link or a device."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.base.errors import DiskFullError, StoreError
from clew.storage.lock import Part, writer_lock
from clew.storage.repair import repair_store
from clew.storage.writer import ShardWriter
from clew.storage.writing import (
    append_to_file,
    create_file,
    lock_file,
    remove_temporaries,
    replace_file,
    replacing,
)
from tests.stores import NOT_FILES, SCHEMA, largest_file, make_rows, write_store


def test_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        replace_file(tmp_path / "a.json", content)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"new")]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "a") as file:
        other = tmp_path / "other"
        other.touch(0o600)
        other.replace(file.name)  # as safetensors does with a name it is given
    modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert len(modes) == 1


def test_error_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"old")
    with pytest.raises(ValueError, match="half way"), replacing(tmp_path / "a") as file:
        file.write(b"new")
        raise ValueError("half way")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_full_disk_keeps_the_old_file_and_is_reported(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"old")
    with largest_file(10), pytest.raises(DiskFullError, match="is full"):
        replace_file(tmp_path / "a", bytes(100))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a", b"old")]


def test_link_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "mine.txt"
    target.write_bytes(b"mine")
    (tmp_path / "link").symlink_to(target)
    replace_file(tmp_path / "link", b"new")
    assert target.read_bytes() == b"mine"
    assert not (tmp_path / "link").is_symlink()


def test_new_file_never_takes_an_existing_name(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_half_written_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    kept = ["last.safetensors", "mine.0123abcd.tmp", "mine.tmp"]
    for name in ("last.safetensors.0123abcd.tmp", *kept):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path, "last.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == kept


@pytest.mark.parametrize("ending", ["part", "recovered"])
@pytest.mark.parametrize("kind", NOT_FILES)
def test_shard_is_not_written_through_a_link_or_device(
    tmp_path: Path, kind: str, ending: str
) -> None:
    mine, store = tmp_path / "mine.txt", tmp_path / "store"
    mine.write_bytes(b"mine")
    store.mkdir()
    place = store / f"batch_0000.arrow.{ending}"
    NOT_FILES[kind](place, mine)
    with pytest.raises(StoreError, match=rf"{ending} in .* is a .*, not a file"):
        ShardWriter(store, 0, SCHEMA, id_column="global_example_id")
    assert mine.read_bytes() == b"mine"


def test_shard_is_not_written_through_a_hard_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine.arrow"
    mine.write_bytes(b"mine")
    (tmp_path / "batch_0000.arrow.recovered").touch()
    os.link(mine, tmp_path / "batch_0000.arrow.part")
    writer = ShardWriter(tmp_path, 0, SCHEMA, id_column="global_example_id")
    writer.write(make_rows(range(4)))
    writer.finish()
    assert mine.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", NOT_FILES)
@pytest.mark.parametrize("use", [append_to_file, lock_file])
def test_nothing_is_appended_to_or_locked_through_a_link_or_device(
    tmp_path: Path, use: Callable[[Path], object], kind: str
) -> None:
    """A lock empties the file that it locks."""
    mine, place = tmp_path / "mine.txt", tmp_path / "place"
    mine.write_bytes(b"mine")
    NOT_FILES[kind](place, mine)
    with pytest.raises(StoreError, match=r'place" is a .*: move it elsewhere'):
        use(place)
    assert mine.read_bytes() == b"mine"


def test_store_is_not_locked_through_a_link(tmp_path: Path) -> None:
    store, mine = write_store(tmp_path / "store", shards=1), tmp_path / "mine.txt"
    mine.write_bytes(b"mine")
    for name in (".manifest.lock", ".writer-1-of-1.lock"):
        (store / name).unlink(missing_ok=True)
        (store / name).symlink_to(mine)
        with pytest.raises(StoreError, match="is a symbolic link"):
            repair_store(store, [])
        (store / name).unlink()
    assert mine.read_bytes() == b"mine"


def test_next_writer_removes_what_killed_writers_left(tmp_path: Path) -> None:
    """Also under the names of earlier versions; files of the user stay, and so do those that
    another process may be writing."""
    store = write_store(tmp_path / "store", shards=1)
    left = ("manifest.json.4711.tmp", "manifest.json.0123abcd.tmp")
    kept = ("notes.tmp", "run.toml.0123abcd.tmp", "manifest.json.backup.tmp")
    for name in (*left, *kept):
        (store / name).touch()
    with writer_lock(store, Part()):
        assert sorted(path.name for path in store.glob("*.tmp")) == sorted(kept)


def test_files_that_killed_processes_left_are_removed_and_those_of_living_ones_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.json.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / "b.json.0123abcd.tmp").write_bytes(b"of another file")
    with replacing(tmp_path / "a.json") as slow:
        slow.write(b"slow")
        replace_file(tmp_path / "a.json", b"fast")
    assert (tmp_path / "a.json").read_bytes() == b"slow"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json.0123abcd.tmp"]
