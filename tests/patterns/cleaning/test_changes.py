"""The journal of changes: what a kill interrupts is completed, and everything can be undone."""

import json
import os
from pathlib import Path

import pytest

from clew.base.errors import InputError, StoreError, StoreLockedError
from clew.patterns.cleaning import changes as module
from clew.patterns.cleaning.changes import CHANGES, Changes, open_changes
from tests.patterns.cleaning.making import list_files, write_set

KEY = ("label", "digest")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_set(tmp_path / "photos", per_class=2)


@pytest.fixture
def changes(data: Path, tmp_path: Path) -> Changes:
    return Changes(data, tmp_path / "photos-clean")


def test_changes_are_undone_one_by_one(data: Path, changes: Changes) -> None:
    before = {name: (data / name).read_bytes() for name in list_files(data)}
    changes.remove("temple/0.png", KEY)
    moved = changes.put_into("temple/1.png", "flower", ("label", "other"))
    changes.keep("flower/0.png", ("outlier", "x"))
    assert moved.target == "flower/1-2.png"  # no photo is overwritten
    assert list_files(data) == ["flower/0.png", "flower/1-2.png", "flower/1.png"]
    assert list_files(changes.removed) == ["temple/0.png"]
    undone = [changes.undo() for _ in range(4)]
    assert [one and one.action for one in undone] == ["keep", "relabel", "remove", None]
    assert {name: (data / name).read_bytes() for name in list_files(data)} == before
    assert not changes.removed.exists()


def test_earlier_sessions_can_be_undone(data: Path, changes: Changes) -> None:
    changes.remove("temple/0.png", KEY)
    again = Changes(data, changes.folder)
    assert [change.source for change in again] == ["temple/0.png"]
    again.undo()
    assert (data / "temple/0.png").is_file() and len(Changes(data, changes.folder)) == 0


@pytest.mark.parametrize("step", ["link", "unlink"])
@pytest.mark.parametrize("is_undo", [False, True])
def test_change_that_a_kill_interrupted_is_completed(
    data: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch, step: str, is_undo: bool
) -> None:
    photo = (data / "temple/0.png").read_bytes()
    if is_undo:
        changes.remove("temple/0.png", KEY)

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(*((os, "link", die) if step == "link" else (Path, "unlink", die)))
        changes.undo() if is_undo else changes.remove("temple/0.png", KEY)
    again = Changes(data, changes.folder)
    is_removed = (step == "unlink") != is_undo
    assert len(again) == is_removed and not again.started()
    assert (data / "temple/0.png").exists() != is_removed
    places = [data / "temple/0.png", again.removed / "temple/0.png"]
    assert [place.read_bytes() for place in places if place.exists()] == [photo]


def test_photo_goes_to_another_disk(
    data: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(module.errno.EXDEV, "Invalid cross-device link")

    photo = (data / "temple/0.png").read_bytes()
    monkeypatch.setattr(os, "link", refuse)
    changes.remove("temple/0.png", KEY)
    assert (changes.removed / "temple/0.png").read_bytes() == photo
    assert list_files(changes.removed) == ["temple/0.png"]


def test_link_stays_a_link(data: Path, changes: Changes, tmp_path: Path) -> None:
    (tmp_path / "real.png").write_bytes((data / "temple/0.png").read_bytes())
    (data / "temple/link.png").symlink_to("../../real.png")
    changes.put_into("temple/link.png", "flower", KEY)
    assert (data / "flower/link.png").resolve() == tmp_path / "real.png"
    changes.undo()
    assert os.readlink(data / "temple/link.png") == "../../real.png"


def test_undo_overwrites_no_photo(data: Path, changes: Changes) -> None:
    changes.remove("temple/0.png", KEY)
    (data / "temple/0.png").write_bytes(b"another one")
    with pytest.raises(InputError, match="another file is at"):
        changes.undo()
    assert (data / "temple/0.png").read_bytes() == b"another one" and len(changes) == 1


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hosts.png", "temple/notes.txt", "no.png"])
def test_only_photos_of_the_folder_are_changed(changes: Changes, name: str) -> None:
    with pytest.raises(InputError):
        changes.remove(name, KEY)


def test_edited_journal_moves_nothing(data: Path, changes: Changes) -> None:
    changes.remove("temple/0.png", KEY)
    path = changes.folder / CHANGES
    line = json.loads(path.read_text().splitlines()[-1]) | {"source": "../../outside.png"}
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(StoreError, match="the journal of changes, cannot be read"):
        Changes(data, changes.folder)


def test_line_that_a_kill_cut_off_is_ignored(data: Path, changes: Changes) -> None:
    changes.remove("temple/0.png", KEY)
    with (changes.folder / CHANGES).open("a") as file:
        file.write('{"number": 2, "act')
    again = Changes(data, changes.folder)
    again.remove("temple/1.png", ("label", "b"))
    assert len(Changes(data, changes.folder)) == 2


def test_second_session_is_refused(data: Path, tmp_path: Path) -> None:
    with (
        open_changes(data, tmp_path / "out"),
        pytest.raises(StoreLockedError, match="another session"),
        open_changes(data, tmp_path / "out"),
    ):
        pass
