"""Photos that ask for too much memory or time are excluded by their header, with the reason."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from clew.patterns.photos import PhotoError, find_photos, open_photo, photo_size, read_square
from tests.patterns.photos.hostile import (
    BOMBS,
    Maker,
    animation,
    exif_bomb,
    many_scans,
    mutate,
    seeds,
    text_bomb,
    wide_tiff,
)

_LIMITED = """
import resource, sys
from pathlib import Path
from clew.patterns.photos import PhotoError, open_photo, read_square
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for path in sorted(Path(sys.argv[1]).iterdir()):
    for read in (open_photo, lambda path: read_square(path, 32)):
        try:
            read(path)
            print(path.name, "was read")
        except PhotoError as error:
            if error.kind != "too large":
                print(path.name, error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_by_its_header(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BOMBS[name]())
    for source in (tmp_path / name, (tmp_path / name).read_bytes()):
        with pytest.raises(PhotoError) as refused:
            read_square(source, 32)
        assert refused.value.kind == "too large"


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as on Linux")
@pytest.mark.slow
def test_bombs_take_neither_memory_nor_time(tmp_path: Path) -> None:
    for name, make in BOMBS.items():
        (tmp_path / name).write_bytes(make())
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, tmp_path], capture_output=True, text=True, check=True
    )
    *unexpected, megabytes = done.stdout.splitlines()
    assert not unexpected and int(megabytes) < 100


@pytest.mark.parametrize("mode", ["F", "I", "I;16"])
def test_wide_tiff_within_the_budget_is_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(wide_tiff(mode, 64, 48))
    assert read_square(path, 16).shape == (16, 16, 3) and photo_size(path) == (64, 48)


def test_refusal_names_the_pixels_the_memory_and_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(wide_tiff("F"))
    with pytest.raises(PhotoError, match=r"10,000 x 9,999 pixels and .* 2 GB .* is 1 GB: resize"):
        open_photo(path)


def test_usual_number_of_scans_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(many_scans(3, 16))
    assert open_photo(path).size == (16, 16)


@pytest.mark.parametrize("make", [exif_bomb, text_bomb])
def test_bombs_beside_the_pixels_are_harmless(tmp_path: Path, make: Maker) -> None:
    path = tmp_path / "a"
    path.write_bytes(make())
    try:
        assert read_square(path, 16).shape == (16, 16, 3)
    except PhotoError as error:
        assert error.kind == "truncated"


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_only_the_first_frame_of_an_animation_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(animation(kind, frames=50))
    assert read_square(path, 16).max() == 0  # the later ones are brighter


def test_pipes_devices_and_loops_among_photos_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "inside").symlink_to(tmp_path)
    (tmp_path / "good.png").write_bytes(dict(seeds())["c.png"])
    found = find_photos(tmp_path)
    assert [photo.name for photo in found.photos] == ["good.png"]
    assert {fault.name for fault in found.faults} == {"pipe.jpg", "loop.jpg", "zero.jpg", "inside"}
    for name in ("pipe.jpg", "loop.jpg", "zero.jpg"):
        with pytest.raises(PhotoError) as refused:
            read_square(tmp_path / name, 16)
        assert refused.value.kind == "unreadable"


@pytest.mark.slow
def test_edited_photo_is_read_or_refused(tmp_path: Path) -> None:
    source = random.Random(0)
    for name, data in seeds():
        for _ in range(15):
            (tmp_path / name).write_bytes(mutate(data, source))
            try:
                assert read_square(tmp_path / name, 16).shape == (16, 16, 3)
            except PhotoError as error:
                assert error.kind and error.reason
