"""clew patterns clean and similar, as commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from clew.patterns.cleaning.findings import CleanPlace
from clew.patterns.cleaning.session import open_cleaning
from tests.patterns.cleaning.making import make_finding, make_findings, write_set


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of photos in the current one."""
    monkeypatch.chdir(tmp_path)
    folder = write_set(Path("photos"))
    (folder / "temple/copy.png").write_bytes((folder / "temple/3.png").read_bytes())
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("random_lite0")
def test_findings_are_printed_with_the_next_command(run: Any, photos: Path) -> None:
    ended = run("patterns", "clean", "photos")
    assert ended.code == 0, ended.err
    assert "near duplicates: 1" in ended.out
    assert 'temple/copy.png  it is the same image as "temple/3.png"' in ended.out
    assert "decide about each of them with: clew patterns clean photos --web" in ended.out
    described = json.loads(run("patterns", "clean", "photos", "--json").out)
    assert described["counts"]["duplicate"] == 1 and described["photos"] == 12
    similar = run("patterns", "similar", str(photos / "temple/0.png"), "--data", "photos", "--json")
    assert len(json.loads(similar.out)) == 10


def test_changes_are_undone_by_the_command(run: Any, tmp_path: Path) -> None:
    data = write_set(tmp_path / "photos", per_class=2)
    place = CleanPlace.of_folder(data)
    with open_cleaning(place, make_findings(data, make_finding("temple/0.png"))) as cleaning:
        cleaning.remove(0)
    ended = run("patterns", "clean", str(data), "--undo", "1")
    assert ended.code == 0 and ended.out == "undone: remove temple/0.png\n"
    assert (data / "temple/0.png").is_file()
    ended = run("patterns", "clean", str(data), "--undo", "1")
    assert ended.code != 0 and "there is nothing to undo" in ended.err
