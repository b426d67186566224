"""Anything but a complete photo is refused with a reason, without taking much memory or time."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from clew.patterns.photos import PhotoError, open_photo, photo_size, read_square
from tests.patterns.photos.making import (
    color_by_color,
    encode,
    picture,
    png_bomb,
    resized_header,
    save,
)

HUGE = 20_000


def _refusal(path: Path, read: Callable[[Path], object] = open_photo) -> PhotoError:
    with pytest.raises(PhotoError) as caught:
        read(path)
    return caught.value


def _squash(path: Path) -> object:
    return read_square(path, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "RGB", {}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "RGB", {"restart_marker_blocks": 2}),
        ("PNG", "RGB", {}),
        ("PNG", "P", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("WEBP", "RGB", {}),
        ("WEBP", "RGB", {"lossless": True}),
    ],
)
def test_truncated_file_is_refused_wherever_it_ends(
    tmp_path: Path, kind: str, mode: str, options: dict
) -> None:
    noise = np.random.default_rng(0).integers(0, 20, (16, 24, 3), np.uint8)
    image = Image.fromarray(np.asarray(picture(24, 16)) // 2 + noise).convert(mode)
    data = encode(image, kind, **options)
    path = tmp_path / "truncated"
    path.write_bytes(data)
    whole = np.asarray(open_photo(path))
    kept = 0
    step = 1 if kind == "JPEG" else 1 + len(data) // 150
    for length in {*range(0, len(data), step), *range(len(data) - 30, len(data))}:
        path.write_bytes(data[:length])
        try:
            photo = np.asarray(open_photo(path))
        except PhotoError as error:
            assert error.kind in ("truncated", "empty", "not an image")
            assert _refusal(path, _squash).kind == error.kind
        else:  # only a trailer without pixels is missing
            assert np.array_equal(photo, whole)
            kept += 1
    assert kept < 25


def test_incomplete_download_padded_with_zeros_is_refused(tmp_path: Path) -> None:
    data = encode(picture(300, 200), "JPEG", quality=95)
    path = tmp_path / "a.jpg"
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    assert _refusal(path).kind == "truncated"


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty", "0 bytes"),
        (b"just some text, saved as a picture", "not an image", 'text ("just some text, save...")'),
        (b"<!DOCTYPE html><html><body>404", "not an image", "a web page"),
        (b"%PDF-1.7 and more of it", "not an image", "a PDF document"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "not an image", "a HEIC photo"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", "not an image", "a video"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "not an image", "something else"),
        (bytes(500), "not an image", "only zero bytes"),
        (b"\x89PNG\r\n\x1a\n", "truncated", "is truncated or damaged"),
        (b"\xff\xd8\xff", "truncated", "is truncated or damaged"),
        (b"BM", "truncated", "is truncated or damaged"),
    ],
)
def test_file_that_is_not_an_image_is_described(
    tmp_path: Path, content: bytes, kind: str, words: str
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    for read in (open_photo, _squash, photo_size):
        refusal = _refusal(path, read)
        assert refusal.kind == kind and words in refusal.reason and str(refusal) == refusal.reason


@pytest.mark.slow
def test_random_bytes_after_a_valid_header_raise_only_photo_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    random = np.random.default_rng(0)
    for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"):
        data = bytearray(encode(picture(), kind))
        for _ in range(60):
            broken = bytearray(data)
            for place in random.integers(4, min(len(data), 300), 6):
                broken[place] = random.integers(256)
            path.write_bytes(broken)
            for read in (open_photo, _squash, photo_size):
                try:
                    read(path)
                except PhotoError as error:
                    assert error.kind and error.reason


def test_tiny_images_are_refused(tmp_path: Path) -> None:
    refusal = _refusal(save(tmp_path / "a.png", picture(300, 7)))
    assert refusal.kind == "tiny"
    assert refusal.reason == "it is 300 x 7 pixels; at least 8 x 8 are required"
    assert read_square(save(tmp_path / "b.png", picture(8, 8)), 32).shape == (32, 32, 3)


def _webp_header(side: int) -> bytes:
    bits = (side - 1) | (side - 1) << 14
    return b"RIFF\x40\0\0\0WEBPVP8L\x34\0\0\0\x2f" + bits.to_bytes(4, "little") + bytes(40)


BOMBS: dict[str, Callable[[], bytes]] = {
    "a.png": lambda: png_bomb(HUGE),
    "a.webp": lambda: _webp_header(16_000),
    "progressive.jpg": lambda: resized_header(
        encode(picture(), "JPEG", progressive=True), HUGE, HUGE
    ),
    "colors.jpg": lambda: resized_header(color_by_color(16, 16), HUGE, HUGE),
    "a.gif": lambda: _claim(encode(picture(), "GIF"), b"\x3c\0\x28\0"),
    "a.bmp": lambda: _claim(encode(picture(), "BMP"), b"\x3c\0\0\0\x28\0\0\0"),
}


def _claim(data: bytes, sides: bytes) -> bytes:
    """The same file, claiming to be huge wherever it gives its sides."""
    half = len(sides) // 2
    return data.replace(sides, HUGE.to_bytes(half, "little") * 2)


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bomb_is_refused_by_its_header(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    for read in (open_photo, _squash):
        refusal = _refusal(path, read)
        assert refusal.kind == "too large"
        assert "pixels, but the limit is 100 million pixels: resize it" in refusal.reason
    assert min(photo_size(path)) > 10_000 if not name.endswith("webp") else True


@pytest.mark.slow
def test_decompression_bomb_takes_no_memory(tmp_path: Path) -> None:
    """400 million pixels would take at least 400 MB."""
    path = tmp_path / "a.png"
    path.write_bytes(png_bomb(HUGE))
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the peak of a process's memory is read from /proc")
    grown = subprocess.run(
        [sys.executable, "-c", _READ_AND_MEASURE, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(grown.stdout) < 50_000


_READ_AND_MEASURE = """
import re, sys
from pathlib import Path
from clew.patterns.photos import PhotoError, open_photo, photo_size, read_square
def peak_kb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kb()
for read in (open_photo, photo_size, lambda path: read_square(path, 64)):
    try:
        read(Path(sys.argv[1]))
    except PhotoError:
        pass
print(peak_kb() - before)
"""


@pytest.mark.slow
def test_huge_baseline_jpeg_is_read_at_reduced_scale(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.new("L", (12_000, 12_000), 90))
    assert np.ptp(read_square(path, 64)) == 0 and abs(int(read_square(path, 8)[0, 0, 0]) - 90) < 2
    assert open_photo(path, at_least=64).size == (1500, 1500)
    assert _refusal(path).kind == "too large"


def test_jpeg_stored_color_by_color_is_read_if_small(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(color_by_color(40, 30))
    assert open_photo(path).size == (40, 30)
    assert np.ptp(read_square(path, 16), axis=(0, 1)).tolist() == [0, 0, 0]


def test_low_memory_is_not_blamed_on_the_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache remembers faults, but retries what could not be read."""

    def fail(_: object) -> None:
        raise MemoryError

    path = save(tmp_path / "a.jpg")
    monkeypatch.setattr(JpegImageFile, "load", fail)
    assert _refusal(path).kind == "unreadable"
    assert "too little free memory" in _refusal(path, _squash).reason


def test_missing_file_is_refused_the_same_way(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "missing.jpg").reason == (
        "it cannot be read (No such file or directory)"
    )
    assert _refusal(tmp_path).kind == "unreadable"
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "not a file" in _refusal(tmp_path / "pipe.jpg").reason


def test_file_without_permission_is_refused() -> None:
    """As another user if the tests run as root, who may read everything."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = save(Path(folder) / "a.jpg")
        open_photo(path)
        path.chmod(0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            assert _refusal(path).reason == "it cannot be read (Permission denied)"
        finally:
            os.seteuid(user)
