"""The journal of changes: what a kill interrupts is completed, and everything can be undone."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError, StoreError, StoreLockedError
from clew.patterns.cleaning.session import CHANGES, Cleaning
from clew.patterns.review import journal as journal_module
from tests.patterns.cleaning.making import clean_all, list_files, make_finding, write_set

# The findings of `clean_all` are about these photos.
PHOTOS = ["flower/0.png", "flower/1.png", "temple/0.png", "temple/1.png"]
FIRST, SECOND = PHOTOS.index("temple/0.png"), PHOTOS.index("temple/1.png")
Open = Callable[[], AbstractContextManager[Cleaning]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_set(tmp_path / "photos", per_class=2)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "photos-clean"


@pytest.fixture
def clean(data: Path, out: Path) -> Open:
    return lambda: clean_all(data, out)


def read_all(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in list_files(folder)}


def test_changes_are_undone_one_by_one(data: Path, clean: Open) -> None:
    before = read_all(data)
    with clean() as cleaning:
        cleaning.remove(FIRST)
        cleaning.relabel(SECOND, "flower")
        cleaning.keep(0)
        # no photo is overwritten
        assert list_files(data) == ["flower/0.png", "flower/1-2.png", "flower/1.png"]
        removed = cleaning.decisions.removed
        assert list_files(removed) == ["temple/0.png"]
        assert [cleaning.undo().action for _ in range(3)] == ["keep", "relabel", "remove"]
        with pytest.raises(InputError, match="nothing to undo"):
            cleaning.undo()
    assert read_all(data) == before and not removed.exists()


def test_earlier_sessions_can_be_undone(data: Path, clean: Open) -> None:
    with clean() as cleaning:
        cleaning.remove(FIRST)
    with clean() as again:
        assert [change.source for change in again.decisions.journal] == ["temple/0.png"]
        again.undo()
    with clean() as cleaning:
        assert (data / "temple/0.png").is_file() and len(cleaning.decisions.journal) == 0


@pytest.mark.parametrize("step", [(os, "link"), (Path, "unlink"), (journal_module, "sync_folder")])
@pytest.mark.parametrize("is_undo", [False, True])
def test_change_that_a_kill_interrupted_is_completed(
    data: Path, clean: Open, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], is_undo: bool
) -> None:
    photo = (data / "temple/0.png").read_bytes()

    def die(*_: object, **__: object) -> None:
        raise SystemExit

    with clean() as cleaning:
        if is_undo:
            cleaning.remove(FIRST)
        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(*step, die)
            cleaning.undo() if is_undo else cleaning.remove(FIRST)
    with clean() as again:
        journal = again.decisions.journal
        assert len(journal) == (not is_undo) and not journal.interrupted()
        places = [data / "temple/0.png", again.decisions.removed / "temple/0.png"]
    assert [place.exists() for place in places] == [is_undo, not is_undo]
    assert places[not is_undo].read_bytes() == photo


def test_photo_goes_to_another_disk(
    data: Path, clean: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    photo = (data / "temple/0.png").read_bytes()
    with clean() as cleaning:
        monkeypatch.setattr(os, "link", refuse)
        cleaning.remove(FIRST)
        removed = cleaning.decisions.removed
    assert read_all(removed) == {"temple/0.png": photo}


def test_photo_that_cannot_leave_its_folder_is_not_copied(
    data: Path, clean: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> None:
        if path == data / "temple/0.png":
            raise PermissionError(errno.EACCES, "Permission denied")
        os.unlink(path)

    with clean() as cleaning:
        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(InputError, match="cannot be removed from its folder"):
            cleaning.remove(FIRST)
        assert list_files(data) == PHOTOS and not cleaning.decisions.removed.exists()
        assert len(cleaning.decisions.journal) == 0 and cleaning.is_open(FIRST)


def test_link_stays_a_link(data: Path, clean: Open, tmp_path: Path) -> None:
    (tmp_path / "real.png").write_bytes((data / "temple/0.png").read_bytes())
    (data / "temple/link.png").symlink_to("../../real.png")
    with clean() as cleaning:
        names = [finding.name for finding in cleaning.findings]
        cleaning.relabel(names.index("temple/link.png"), "flower")
        assert (data / "flower/link.png").resolve() == tmp_path / "real.png"
        cleaning.undo()
    assert os.readlink(data / "temple/link.png") == "../../real.png"


def test_undo_overwrites_no_photo(data: Path, clean: Open) -> None:
    with clean() as cleaning:
        cleaning.remove(FIRST)
        (data / "temple/0.png").write_bytes(b"another one")
        with pytest.raises(InputError, match="is now a different file"):
            cleaning.undo()
        assert len(cleaning.decisions.journal) == 1
    assert (data / "temple/0.png").read_bytes() == b"another one"


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hosts.png", "temple/notes.txt", "no.png"])
def test_only_photos_of_the_folder_are_changed(clean: Open, name: str) -> None:
    with clean() as cleaning:
        cleaning.findings = (make_finding(f"x/{name}", digest="x"),)
        object.__setattr__(cleaning.findings[0], "name", name)
        with pytest.raises(InputError):
            cleaning.remove(0)
        assert len(cleaning.decisions.journal) == 0


@pytest.mark.parametrize("edit", [{"source": "../../outside.png"}, {"target": "a.sh"}])
def test_edited_journal_moves_nothing(clean: Open, out: Path, edit: dict[str, str]) -> None:
    with clean() as cleaning:
        cleaning.remove(FIRST)
    line = json.loads((out / CHANGES).read_text().splitlines()[-1]) | edit
    (out / CHANGES).write_text(json.dumps(line) + "\n")
    with pytest.raises(StoreError, match="the journal of decisions, cannot be read"), clean():
        pass


def test_edited_journal_deletes_nothing(data: Path, clean: Open, out: Path) -> None:
    with clean() as cleaning:
        cleaning.remove(FIRST)
    line = json.loads((out / CHANGES).read_text().splitlines()[-1])
    line |= {"action": "relabel", "source": "temple/1.png", "target": "temple/1.png"}
    (out / CHANGES).write_text(json.dumps(line) + "\n")
    with clean() as cleaning:
        cleaning.undo()
    (out / CHANGES).write_text(json.dumps(line | {"step": "start"}) + "\n")
    with clean():
        assert (data / "temple/1.png").is_file()


def test_journal_of_an_earlier_version_is_undone(data: Path, clean: Open, out: Path) -> None:
    photo = data / "temple/0.png"
    change = {"number": 1, "action": "remove", "key": ["label", "x"], "step": "done"}
    change |= {"source": "temple/0.png", "target": "temple/0.png", "bytes": 3, "modified_ns": 5}
    (out / "removed/temple").mkdir(parents=True)
    photo.rename(out / "removed/temple/0.png")
    (out / CHANGES).write_text(json.dumps(change | {"link": None, "made": "now"}) + "\n")
    with clean() as cleaning:
        assert cleaning.undo().source == "temple/0.png"
    assert photo.is_file() and not (out / "removed").exists()


def test_line_that_a_kill_cut_off_is_ignored(clean: Open, out: Path) -> None:
    with clean() as cleaning:
        cleaning.remove(FIRST)
    with (out / CHANGES).open("a") as file:
        file.write('{"number": 2, "act')
    with clean() as again:
        again.remove(2)  # temple/1.png is the third photo now
    with clean() as cleaning:
        assert len(cleaning.decisions.journal) == 2


def test_second_session_is_refused(clean: Open) -> None:
    with clean(), pytest.raises(StoreLockedError, match="another session"), clean():
        pass
