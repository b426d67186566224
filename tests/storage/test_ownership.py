"""Folders of results: only what clew made is replaced or removed."""

from pathlib import Path

import pytest

from clew.base.errors import InputError
from clew.base.urls import as_path
from clew.engine.folders import RUN_FILES, clear_run
from clew.storage.ownership import OWN_FILE, claim
from clew.storage.run_file import write_run_file
from clew.storage.working_copy import working_copy
from tests.object_server import ObjectServer
from tests.stores import flip_byte


def test_somebody_elses_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("mine")
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r'log.csv" was not written by clew, so it is not rep'):
        claim(tmp_path, ["plan.json", "log.csv"])
    assert {path.name for path in tmp_path.iterdir()} == {"log.csv", "thesis.tex"}
    claim(tmp_path, ["plan.json"])
    assert (tmp_path / OWN_FILE).exists()


def test_what_clew_made_may_be_replaced(tmp_path: Path) -> None:
    claim(tmp_path, ["log.csv"])
    (tmp_path / "log.csv").write_text("clew's")
    (tmp_path / "plan.json").write_text("mine")
    claim(tmp_path, ["log.csv"])
    with pytest.raises(InputError, match="plan.json"):
        claim(tmp_path, ["log.csv", "plan.json"])
    flip_byte(tmp_path / OWN_FILE, 5)
    with pytest.raises(InputError, match="log.csv"):
        claim(tmp_path, ["log.csv"])


def test_a_folder_of_an_earlier_version_is_known_by_its_files(tmp_path: Path) -> None:
    write_run_file(tmp_path, "train", {"epochs": 3})
    (tmp_path / "log.csv").write_text("clew's")
    claim(tmp_path, ["log.csv"], command="train")
    assert (tmp_path / OWN_FILE).exists()


@pytest.mark.parametrize("command", ["", "compare"])
def test_a_run_of_another_command_proves_nothing(tmp_path: Path, command: str) -> None:
    write_run_file(tmp_path, "extract", {"model": "a"})
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(InputError, match=r'table.csv" was not written by clew'):
        claim(tmp_path, ["table.csv", "results.json"], command=command)


def test_starting_over_removes_only_the_files_of_a_run(tmp_path: Path) -> None:
    claim(tmp_path, RUN_FILES)
    board = tmp_path / "tensorboard"
    board.mkdir()
    own = (
        tmp_path / "plan.json",
        tmp_path / "plan.json.0123abcd.tmp",
        board / "events.out.tfevents.1",
    )
    others = (tmp_path / "notes.txt", tmp_path / "data.2024.tmp", board / "notes.txt")
    for path in (*own, *others):
        path.write_text("")
    clear_run(tmp_path)
    assert all(path.exists() for path in others)
    assert not any(path.exists() for path in own)


@pytest.mark.parametrize("name", ["best.safetensors", "tensorboard"])
def test_starting_over_removes_nothing_of_somebody_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("mine") if "." in name else path.mkdir()
    with pytest.raises(InputError, match="was not written by clew"):
        clear_run(tmp_path)
    assert path.exists()


def test_a_folder_at_a_url_has_its_list_too(object_server: ObjectServer) -> None:
    url = as_path(object_server.new_url())
    with working_copy(url) as folder:
        claim(folder, ["log.csv"])
    with working_copy(url) as folder:
        (folder / "log.csv").write_text("")
        claim(folder, ["log.csv"])
        with pytest.raises(InputError, match="thesis.tex"):
            (folder / "thesis.tex").write_text("")
            claim(folder, ["thesis.tex"])
