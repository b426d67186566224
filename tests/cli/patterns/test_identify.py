"""clew patterns identify: output, results and wrong use."""

import io
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from clew.patterns.trained.model import load_classifier
from tests.patterns.identification.conftest import color_folder
from tests.patterns.identification.making import (
    COLORS,
    draw_doubtful,
    draw_noise,
    draw_photo,
    make_folder,
    with_unknown,
)

__all__ = ["color_folder"]


@pytest.fixture
def model(color_folder: Path, tmp_path: Path) -> Path:
    """Results go beside a model: each test has its own."""
    return Path(shutil.copytree(color_folder, tmp_path / "mi modelo"))


@pytest.mark.slow
def test_few_photos_are_listed_one_by_one(run: Any, model: Path, tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "fotos ñ 📷")
    ended = run("patterns", "identify", photos, "--model", model)
    assert ended.code == 0, ended.err
    assert "10 photos identified, none doubtful, 3 cannot be read" in ended.out
    assert "foto 0 <b>&amp;.png" in ended.out and "azul ñ" in ended.out
    assert "the file is empty (0 bytes)" in ended.out
    out = model / "identified" / "fotos ñ 📷"
    assert f"page: {out / 'identified.html'}\n" in ended.out
    for name in ("identified.html", "identified.csv", "identified.json", "contact_sheet.jpg"):
        assert (out / name).exists()


@pytest.mark.slow
def test_many_photos_are_counted_per_class(run: Any, model: Path, tmp_path: Path) -> None:
    for number in range(30):
        draw_photo(tmp_path / "many" / f"{number}.png", list(COLORS)[number % 3], seed=number)
    for number in range(3):
        (tmp_path / "many" / f"bad {number}.gif").write_bytes(b"")
    (tmp_path / "many" / "bad.heic").write_bytes(b"")
    ended = run("patterns", "identify", tmp_path / "many", "--model", model, "--thumbnails", 6)
    assert ended.code == 0, ended.err
    assert "30 photos to identify" not in ended.out and "34/34 photos" in ended.out
    assert "note: Thumbnails show 6 of 30 photos" in ended.out
    assert "bad 2.gif" in ended.out


@pytest.mark.slow
def test_doubtful_photos_exit_with_0_and_print_review_command(
    run: Any, model: Path, tmp_path: Path
) -> None:
    draw_doubtful(tmp_path / "a b.png")
    out = tmp_path / "out"
    ended = run(
        *("patterns", "identify", tmp_path / "a b.png", "--model", model),
        *("--threshold", 1, "--top-k", 2, "--output-dir", out, "--copy-to", tmp_path / "sorted"),
    )
    assert ended.code == 0, ended.err
    assert "0 of 1 photo identified, 1 doubtful" in ended.out and "(doubtful)" in ended.out
    review = f"clew patterns review --model '{model}' --identified {out}"
    assert f"review doubtful photos with: {review}\n" in ended.out
    assert (tmp_path / "sorted" / "_doubtful" / "a b.png").exists()
    unsure = f"doubtful photos are in {tmp_path / 'sorted' / '_doubtful'}"
    assert f"1 photo copied to {tmp_path / 'sorted'}; {unsure}\n" in ended.out
    listed = json.loads((out / "identified.json").read_text(encoding="utf-8"))
    assert len(listed["photos"][0]["best"]) == 2


@pytest.mark.slow
def test_list_explains_what_unknown_means(run: Any, model: Path, tmp_path: Path) -> None:
    known = with_unknown(load_classifier(model, "cpu")).unknown
    assert known is not None
    known.write(model)
    photos = draw_noise(tmp_path / "photos" / "noise.png").parent
    draw_photo(photos / "green.png", "green")
    ended = run("patterns", "identify", photos, "--model", model)
    assert ended.code == 0, ended.err
    assert ended.out.count("(unknown)") == 1
    means = "unknown: unlike the training photos of every class; the percentage only says which of "
    assert f"\n{means}the known classes comes closest\n" in ended.out
    alone = run("patterns", "identify", photos / "green.png", "--model", model)
    assert alone.code == 0 and "unlike" not in alone.out


@pytest.mark.slow
def test_review_follows_identification(
    run: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_doubtful(tmp_path / "a.png")
    photos = tmp_path / "photos"
    draw_photo(photos / "green" / "1.png", "green")
    results = json.loads((model / "results.json").read_text(encoding="utf-8"))
    results |= {"classes": list(COLORS), "data": {"folder": str(photos)}}
    (model / "results.json").write_text(json.dumps(results), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("q\n"))
    arguments = ("--model", model, "--threshold", 1, "--review")
    ended = run("patterns", "identify", tmp_path / "a.png", *arguments)
    assert ended.code == 0, ended.err
    assert "1 photo to review" in ended.out


def test_ctrl_c_stops_without_results(
    run: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(tmp_path / "photos")

    def interrupted(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("clew.patterns.trained.model.PatternModel.judge", interrupted)
    ended = run("patterns", "identify", photos, "--model", model)
    assert ended.code == 130
    assert ended.err == "clew: stopped. Run the same command again to start over.\n"
    assert not list((model / "identified").rglob("*.*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--threshold", 60), "--threshold is 60.0: it must be a probability from 0 to 1"),
        (("--top-k", 0), "--top-k is 0: it must be 1 or more"),
        (("--device", "cuda:99"), "cuda:99"),
        (("--name", "animals"), "different models: give only one"),
    ],
)
def test_invalid_usage_exits_with_2(
    run: Any, model: Path, tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    photo = draw_photo(tmp_path / "a.png", "red")
    ended = run("patterns", "identify", photo, "--model", model, *options)
    assert ended.code == 2 and message in ended.err


def test_missing_photos_or_model_exit_with_2(run: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = run("patterns", "identify", tmp_path / "empty", "--model", model)
    assert empty.code == 2 and "photos" in empty.err
    gone = run("patterns", "identify", tmp_path / "gone", "--model", model)
    assert gone.code == 2 and "gone" in gone.err
    untrained = run("patterns", "identify", tmp_path / "empty", "--model", tmp_path / "empty")
    assert untrained.code == 2 and "contains no trained model" in untrained.err
