"""The whole search on real photos, with a network whose weights are random."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from clew.base.errors import InputError
from clew.patterns import clean_photos, find_similar
from clew.patterns.cleaning.findings import FINDINGS
from clew.patterns.photos import find_classes
from clew.storage.run_file import read_run_file
from clew.storage.text_files import read_csv
from tests.patterns.cleaning.making import pieces, write_set

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("random_lite0")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with a mirrored photo, a copy in the wrong class, a dark and a damaged photo."""
    folder = write_set(tmp_path_factory.mktemp("clean") / "photos")
    ImageOps.mirror(pieces()[0]).save(folder / "temple/mirrored.png")
    shutil.copy(folder / "flower/1.png", folder / "temple/copy.png")
    Image.new("RGB", (120, 120), (2, 2, 2)).save(folder / "flower/dark.png")
    (folder / "flower/damaged.png").write_bytes(b"not a photo")
    return folder


def test_problems_are_listed_and_nothing_is_changed(data: Path) -> None:
    before = sorted(data.rglob("*"))
    result = clean_photos(data)
    found = {(one.kind, one.name): one for one in result}
    mirrored = next(one for one in result if one.other and "mirrored" in one.name + one.other)
    assert {mirrored.name, mirrored.other} == {"temple/0.png", "temple/mirrored.png"}
    copy = found["duplicate", "temple/copy.png"]
    assert copy.other == "flower/1.png" and "one of the labels is wrong" in copy.reason
    assert "very dark" in found["quality", "flower/dark.png"].reason
    assert result.findings.excluded == {"damaged": 1} or sum(result.findings.excluded.values()) == 1
    assert result.table.num_rows == len(result) == len(read_csv(result.list_file))
    written = json.loads((result.folder / FINDINGS).read_text())
    described = json.loads(json.dumps(result.findings.describe()))
    assert written | described == written
    assert read_run_file(result.folder / "run.toml").settings == {"data": str(data)}
    report = result.report.read_text()
    assert "photo-map" in report and "Poor quality: " in report and "data:image/jpeg" in report
    assert sorted(data.rglob("*")) == before and result.folder == data.with_name("photos-clean")
    assert find_classes(data.parent, at_least=1).classes == ("photos",)  # not the findings


def test_similar_photos_are_found_for_any_photo(data: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked.jpg"
    ImageOps.mirror(pieces()[3]).save(asked)
    found = find_similar(asked, data=data, top_k=4)
    assert len(found) == 4 and found[0].similarity >= found[-1].similarity
    own = find_similar(data / "flower/2.png", data=data, top_k=3)
    assert "flower/2.png" not in [photo.name for photo in own]


@pytest.mark.parametrize(
    ("name", "message"), [("none.jpg", "there is no photo"), ("bad.jpg", "cannot be read")]
)
def test_photo_that_cannot_be_compared_is_refused(
    data: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"not a photo")
    with pytest.raises(InputError, match=message):
        find_similar(tmp_path / name, data=data)


def test_set_and_folder_cannot_be_combined(data: Path) -> None:
    with pytest.raises(InputError, match="give only one of them"):
        clean_photos(data, name="animals")
