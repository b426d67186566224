"""identified.json is written line by line and reads back unchanged."""

import json
import os
from pathlib import Path

import pytest

from clew.base.errors import StoreError
from clew.patterns.identification.results import (
    Identified,
    IdentifiedWriter,
    default_folder,
    find_newest,
    read_entry,
    read_identified,
    read_settings,
)
from clew.patterns.photos.photo import Fault

FAULT = Fault(name="c.jpg", label=None, kind="truncated", reason='it "breaks" off')
PHOTOS = (
    Identified(name="ñ/a.jpg", path=Path("/x/ñ/a.jpg"), best=(("cat", 0.75),), doubtful=False),
    # A name that is not UTF-8, as on old disks.
    Identified(
        name="b\udce9.jpg",
        path=Path("/x/b\udce9.jpg"),
        best=(("cat", 0.5), ("dog", 0.25)),
        doubtful=True,
    ),
    Identified(name="c.jpg", path=Path("/x/c.jpg"), best=(), doubtful=False, fault=FAULT),
)


def write(path: Path, photos: tuple[Identified, ...] = PHOTOS, folder: str = "/x") -> list[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = IdentifiedWriter(file, {"folder": folder, "threshold": 0.6})
        places = [writer.add(photo) for photo in photos]
        writer.end({"photos": len(photos)})
    return places


@pytest.mark.parametrize("photos", [PHOTOS, ()])
def test_results_round_trip(tmp_path: Path, photos: tuple[Identified, ...]) -> None:
    path = tmp_path / "identified.json"
    places = write(path, photos)
    assert read_identified(path).photos == photos
    assert read_identified(path).settings == {"folder": "/x", "threshold": 0.6}
    assert read_settings(path) == {"folder": "/x", "threshold": 0.6}
    with path.open("rb") as file:
        assert [read_entry(file, place) for place in reversed(places)] == list(reversed(photos))


def test_rewritten_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "identified.json"
    write(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=4))
    assert read_identified(path).photos == PHOTOS


@pytest.mark.parametrize("content", ["", "{", "[]", '{"settings": {}, "photos": [{}]}'])
def test_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    path = tmp_path / "identified.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StoreError, match=r"identify FOLDER.* again"):
        read_identified(path)
    assert read_settings(path) in (None, {})


def test_newest_result_is_found(tmp_path: Path) -> None:
    assert find_newest(tmp_path) is None
    for number, name in enumerate(("b", "a", "c")):
        path = tmp_path / "identified" / name / "identified.json"
        write(path)
        os.utime(path, (number if name != "a" else 9, number if name != "a" else 9))
    assert find_newest(tmp_path) == tmp_path / "identified" / "a" / "identified.json"


def test_two_folders_with_the_same_name_get_separate_result_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "x" / "fotos", tmp_path / "y" / "fotos"
    place = default_folder(tmp_path, first)
    assert place == tmp_path / "identified" / "fotos"
    write(place / "identified.json", folder=str(first))
    assert default_folder(tmp_path, first) == place
    assert default_folder(tmp_path, second) == place.with_name("fotos-2")
