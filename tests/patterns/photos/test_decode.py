"""Whatever a file holds, its photo comes upright, in RGB, on white."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clew.patterns.photos import PhotoError, open_photo, photo_size, read_photo, read_square
from tests.patterns.photos.making import encode, picture, save

LOSSLESS = {"quality": 100, "subsampling": 0}
TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
    9: None,  # no such rotation
}


def _difference(one: Image.Image | np.ndarray, other: Image.Image | np.ndarray) -> float:
    assert np.shape(one) == np.shape(other)
    return float(np.abs(np.asarray(one, float) - np.asarray(other, float)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", TURNS)
def test_photo_is_decoded_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"jpg": LOSSLESS, "webp": {"lossless": True}}.get(suffix, {})
    path = save(tmp_path / f"a.{suffix}", exif=exif, **options)
    turn = TURNS[orientation]
    upright = picture() if turn is None else picture().transpose(turn)
    assert _difference(open_photo(path), upright) < 1
    square = read_photo(path, 24)
    assert _difference(square.pixels, upright.resize((24, 24), Image.Resampling.LANCZOS)) < 2
    assert (square.width, square.height) == photo_size(path) == upright.size


def test_damaged_exif_data_does_not_spoil_a_photo(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0", **LOSSLESS
    )
    assert _difference(open_photo(path), picture()) < 1


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("a.jpg", "CMYK", LOSSLESS),
        ("a.tif", "CMYK", {}),
        ("a.png", "RGB", {}),
        ("a.bmp", "RGB", {}),
        ("a.tif", "YCbCr", {}),
        ("a.webp", "RGB", {"lossless": True}),
        ("a.png", "P", {}),
        ("a.gif", "P", {}),
        ("a.png", "1", {}),
        ("a.jpg", "L", LOSSLESS),
    ],
)
def test_photo_is_converted_to_rgb(tmp_path: Path, name: str, mode: str, options: dict) -> None:
    image = picture().convert(mode)
    path = save(tmp_path / name, image, **options)
    assert _difference(open_photo(path), image.convert("RGB")) < 2
    assert read_square(path, 16).shape == (16, 16, 3)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bit_gray_keeps_its_brightness(tmp_path: Path, name: str) -> None:
    gray = picture().convert("L")
    path = save(tmp_path / name, Image.fromarray(np.asarray(gray).astype(np.uint16) * 257))
    assert _difference(open_photo(path), gray.convert("RGB")) == 0


@pytest.mark.parametrize(
    ("dtype", "white"), [(np.int32, 65535), (np.float32, 1), (np.float32, 255)]
)
def test_wider_numbers_keep_their_brightness(tmp_path: Path, dtype: type, white: float) -> None:
    gray = np.asarray(picture().convert("L"))
    values = (gray / 255 * white).astype(dtype)
    path = save(tmp_path / "a.tif", Image.fromarray(values))
    assert _difference(open_photo(path), np.repeat(gray[..., None], 3, -1)) < 1


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("a.png", "RGBA", {}),
        ("a.png", "LA", {}),
        ("a.tif", "RGBA", {}),
        ("a.webp", "RGBA", {"lossless": True, "exact": True}),
        ("a.gif", "RGBA", {}),
    ],
)
def test_transparency_becomes_white(tmp_path: Path, name: str, mode: str, options: dict) -> None:
    image = picture().convert("RGBA")
    image.putalpha(Image.fromarray(np.repeat(np.uint8([[0] * 30 + [255] * 30]), 40, 0)))
    photo = np.asarray(open_photo(save(tmp_path / name, image.convert(mode), **options)))
    assert (photo[:, :30] == 255).all()
    assert photo[:, 31:, 1].std() > 40
    square = read_square(tmp_path / name, 30)
    assert (square[:, :13] >= 254).all() and square[:, 16:, 1].std() > 40


def test_color_marked_as_transparent_becomes_white(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 20), (1, 2, 3))
    image.paste((200, 0, 0), (0, 0, 10, 20))
    path = save(tmp_path / "a.png", image, transparency=(1, 2, 3))
    photo = open_photo(path)
    assert photo.getpixel((5, 5)) == (200, 0, 0) and photo.getpixel((15, 5)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_first_of_several_frames_is_used(tmp_path: Path, kind: str) -> None:
    later = [picture().rotate(180), Image.new("RGB", (60, 40), "green")]
    options = {"WEBP": {"lossless": True}, "MPO": LOSSLESS}.get(kind, {})
    path = save(tmp_path / "a.jpg", format=kind, save_all=True, append_images=later, **options)
    assert _difference(open_photo(path), picture()) < 5


def test_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", format="JPEG", **LOSSLESS)
    assert _difference(open_photo(path), picture()) < 1


@pytest.mark.slow
def test_at_least_allows_reduced_jpeg_but_never_too_small(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", picture(1600, 1200), quality=90)
    assert open_photo(path).size == (1600, 1200)
    assert open_photo(path, at_least=150).size == (200, 150)
    assert open_photo(path, at_least=151).size == (400, 300)
    assert open_photo(path, at_least=9000).size == (1600, 1200)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("name", ["a.jpg", "progressive.jpg", "a.png"])
def test_squares_match_plain_decoding_and_lanczos(tmp_path: Path, name: str, size: int) -> None:
    noise = np.random.default_rng(0).normal(0, 12, (900, 1200, 3))
    image = Image.fromarray((np.asarray(picture(1200, 900)) + noise).clip(0, 255).astype(np.uint8))
    path = save(tmp_path / name, image, **({"progressive": True} if "prog" in name else {}))
    with Image.open(path) as plain:
        wanted = plain.resize((size, size), Image.Resampling.LANCZOS)
    square = read_square(path, size)
    assert square.dtype == np.uint8 and square.flags.c_contiguous and square.flags.writeable
    assert _difference(square, wanted) < 1.5


@pytest.mark.slow
def test_many_threads_read_at_once_and_restore_the_warnings(tmp_path: Path) -> None:
    good = [save(tmp_path / f"{n}.jpg", picture(300, 200, seed=n)) for n in range(8)]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(encode(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff")[:900])
    wanted = [read_square(path, 32) for path in good]
    before = list(warnings.filters)

    def read(number: int) -> bool:
        if number % 9 == 8:
            with pytest.raises(PhotoError):
                read_square(bad, 32)
            return True
        path = number % 9
        return np.array_equal(read_square(good[path], 32), wanted[path])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(450)))
    assert warnings.filters == before


def test_no_file_stays_open(tmp_path: Path) -> None:
    good, bad = save(tmp_path / "a.tif"), tmp_path / "b.tif"
    bad.write_bytes(good.read_bytes()[:-100])
    before = len(os.listdir("/dev/fd"))
    open_photo(good)
    with pytest.raises(PhotoError):
        open_photo(bad)
    assert len(os.listdir("/dev/fd")) == before
