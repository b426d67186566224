"""clew patterns recognize: one photo, as text and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patterns.identification.conftest import color_folder
from tests.patterns.identification.making import draw_doubtful, draw_photo, draw_small

__all__ = ["color_folder"]


def test_classes_are_listed_with_bars(run: Any, color_folder: Path, tmp_path: Path) -> None:
    photo = draw_photo(tmp_path / "ñ [b].jpg", "azul ñ")
    ended = run("patterns", "recognize", photo, "--model", color_folder)
    assert ended.code == 0, ended.err
    assert f"{photo} (60 x 40 pixels)\n" in ended.out
    lines = ended.out.splitlines()
    assert lines[1].startswith("azul ñ") and len(lines) == 4
    assert "most confident" not in ended.out


@pytest.mark.slow
def test_multiscale_locates_object_and_json_has_all_results(
    run: Any, color_folder: Path, tmp_path: Path
) -> None:
    photo = draw_small(tmp_path / "a.png", "red", box=(270, 20, 350, 80))
    command = ("patterns", "recognize", photo, "--model", color_folder, "--multiscale")
    told = run(*command)
    assert (
        told.code == 0 and "most confident: red (" in told.out and "out of 44 windows" in told.out
    )
    found = json.loads(run(*command, "--json", "--top-k", 1, "--threshold", 0).out)
    assert [guess["class"] for guess in found["best"]] == ["red"]
    assert found["views"] == 44 and found["doubtful"] is False and found["photo"] == str(photo)
    left, top, right, bottom = found["best_view"]["box"]
    assert left < 310 < right and top < 50 < bottom


def test_doubtful_photo_exits_with_0(run: Any, color_folder: Path, tmp_path: Path) -> None:
    photo = draw_doubtful(tmp_path / "a.png")
    ended = run("patterns", "recognize", photo, "--model", color_folder, "--threshold", 1)
    assert ended.code == 0 and "doubtful: no class reaches a confidence of 100%" in ended.out


@pytest.mark.slow
def test_invalid_usage_exits_with_2(run: Any, color_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture", encoding="utf-8")
    bad = run("patterns", "recognize", tmp_path / "text.png", "--model", color_folder)
    assert bad.code == 2 and "text.png" in bad.err
    gone = run("patterns", "recognize", tmp_path / "gone.png", "--model", color_folder)
    assert gone.code == 2 and "gone.png" in gone.err
    photo = draw_photo(tmp_path / "a.png", "red")
    wrong = run("patterns", "recognize", photo, "--model", color_folder, "--threshold", 2)
    assert wrong.code == 2 and "--threshold is 2" in wrong.err
