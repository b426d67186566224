"""One photo: as a whole as identify sees it, and at several scales what a whole view misses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clew.base.errors import InputError
from clew.patterns.identification.identify import identify_photos
from clew.patterns.identification.recognize import (
    Recognition,
    combine,
    find_best_view,
    place_windows,
    recognize_photo,
)
from clew.patterns.identification.results import read_identified
from clew.patterns.settings import IdentifySettings
from clew.patterns.trained.model import PatternModel
from tests.patterns.identification.making import draw_photo, draw_small

BOX = (270, 20, 350, 80)


def test_prediction_equals_that_of_identify(tmp_path: Path, colors: PatternModel) -> None:
    path = draw_photo(tmp_path / "a b.jpg", "green", sides=(900, 500))
    config = IdentifySettings(photos=path, model=colors, out=tmp_path / "out")
    listed = read_identified(identify_photos(config).list_file).photos[0]
    found = recognize_photo(colors, path)
    assert found.best[0][0] == "green" and (found.width, found.height) == (900, 500)
    assert [label for label, _ in found.best] == [label for label, _ in listed.best]
    assert found.best[0][1] == pytest.approx(listed.best[0][1], abs=1e-5)
    assert found.best_view is None and found.views == 1


def test_small_object_is_found_where_it_is(tmp_path: Path, colors: PatternModel) -> None:
    path = draw_small(tmp_path / "a.png", "red", box=BOX)
    found = recognize_photo(colors, path, multiscale=True, top_k=9)
    assert found.best[0][0] == "red" and len(found.best) == 3
    assert sum(chance for _, chance in found.best) == pytest.approx(1)
    assert found.best_view is not None and found.best_view.label == "red"
    box = found.best_view.box
    assert box.right - box.left < 400
    assert box.left < 310 < box.right and box.top < 50 < box.bottom


def test_photo_filled_by_the_object_is_recognized_as_a_whole(
    tmp_path: Path, colors: PatternModel
) -> None:
    found = recognize_photo(
        colors, draw_photo(tmp_path / "a.png", "azul ñ", sides=(64, 64)), multiscale=True
    )
    assert found.best[0][0] == "azul ñ" and found.best_view is not None
    assert (found.best_view.box.right, found.best_view.box.bottom) == (64, 64)


@pytest.mark.parametrize(
    ("sides", "count"), [((400, 300), 44), ((8, 8), 1), ((30, 30), 10), ((50_000, 8), 1)]
)
def test_windows_cover_the_photo_and_stay_inside(sides: tuple[int, int], count: int) -> None:
    windows = place_windows(*sides)
    assert len(windows) == count
    assert (windows[0].left, windows[0].top, windows[0].right, windows[0].bottom) == (0, 0, *sides)
    for box in windows:
        assert 0 <= box.left < box.right <= sides[0] and 0 <= box.top < box.bottom <= sides[1]


def test_panorama_is_seen_part_by_part() -> None:
    windows = place_windows(4000, 500)
    assert len(windows) < 500
    parts = [box for box in windows[1:] if box.bottom - box.top == 500]
    assert parts[0].right - parts[0].left == 1000 and parts[-1].right == 4000


def test_one_confident_view_outweighs_many_uncertain_ones() -> None:
    windows = place_windows(400, 300)
    views = np.tile([0.5, 0.3, 0.2], (len(windows), 1))
    assert combine(views, windows).tolist() == pytest.approx([0.5, 0.3, 0.2])
    views[-1] = [0.001, 0.001, 0.998]
    answer = combine(views, windows)
    assert answer.argmax() == 2 and answer.sum() == pytest.approx(1)
    assert find_best_view(views, 2) == len(windows) - 1 and find_best_view(views, 0) == 0


def test_confident_whole_view_outweighs_a_confident_detail() -> None:
    windows = place_windows(400, 300)
    views = np.tile([0.5, 0.3, 0.2], (len(windows), 1))
    views[0], views[-1] = [0.99, 0.01, 0.0], [0.0, 0.01, 0.99]
    assert combine(views, windows).argmax() == 0


@pytest.mark.parametrize(
    ("content", "message"), [(None, "a.jpg"), (b"", "empty"), (b"no picture at all", "not a JPEG")]
)
def test_invalid_photo_is_reported(
    tmp_path: Path, colors: PatternModel, content: bytes | None, message: str
) -> None:
    path = tmp_path / "a.jpg"
    if content is not None:
        path.write_bytes(content)
    for multiscale in (False, True):
        with pytest.raises(InputError, match=message):
            recognize_photo(colors, path, multiscale=multiscale)


def test_folder_error_suggests_identify(tmp_path: Path, colors: PatternModel) -> None:
    with pytest.raises(InputError, match='is a folder: use "clew patterns identify" for'):
        recognize_photo(colors, tmp_path)


def test_photo_below_the_threshold_is_doubtful() -> None:
    found = Recognition(path=Path("a.png"), width=8, height=8, best=(("cat", 0.7), ("dog", 0.3)))
    assert not found.is_doubtful and replace(found, threshold=0.8).is_doubtful
