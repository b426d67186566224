"""Photos as pixels, whatever the file is: RGB, upright, complete. A photo that cannot be read
completely is refused with a PhotoError that says why; a bad file never raises anything else."""

from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from clew.patterns.photos.opening import (
    MAX_PIXELS,
    MIN_SIDE,
    PhotoError,
    PhotoSource,
    opened_photo,
    prepare_decoding,
)

__all__ = [
    "MAX_PIXELS",
    "MIN_SIDE",
    "PhotoError",
    "PhotoSource",
    "Square",
    "open_photo",
    "photo_size",
    "read_photo",
    "read_square",
]

# A JPEG is decoded at 1/2, 1/4 or 1/8 scale if that leaves twice the requested sides, and any image
# is box-averaged down to three times them before it is filtered. Compared with plain decoding and
# Lanczos, JPEGs of 2 to 12 million pixels take 3 to 5 times less CPU time, other images half, at a
# PSNR of 43 to 53 dB (bicubic: 39 to 45, and hardly faster).
_DRAFT_GAP = 2
_REDUCING_GAP = 3.0
_ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {_TURNS[number] for number in (5, 6, 7, 8)}
_KEPT = {"L", "LA", "RGB", "RGBA"}
_WIDE = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
_SIXTEEN_BITS = 65535


class Square(NamedTuple):
    """A photo squashed to a square, and the sides of the original as seen upright."""

    pixels: UInt8[np.ndarray, "size size 3"]
    width: int
    height: int


def open_photo(source: PhotoSource, *, at_least: int | None = None) -> Image.Image:
    """The photo as RGB, upright, transparency over white, the first frame of several.

    With `at_least`, a JPEG may come smaller than it is, with no side below `at_least` (or its own).
    Raises PhotoError.
    """
    with opened_photo(source) as image, prepare_decoding(image, at_least):
        image.load()
        return _upright(flatten(plain_mode(image)), _turn(image))


def read_square(source: PhotoSource, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """The whole photo squashed to `size` x `size`, RGB, antialiased. Raises PhotoError."""
    return read_photo(source, size).pixels


def read_photo(source: PhotoSource, size: int, *, take_turns: bool = True) -> Square:
    """`read_square`, and the photo's own sides, opening the file once. Raises PhotoError; without
    `take_turns`, also for a large photo, which only one thread at a time should decode."""
    with opened_photo(source) as image:
        sides = image.size
        with prepare_decoding(image, _DRAFT_GAP * size, take_turns=take_turns):
            image.load()
            # Before colors are converted and the image is rotated: small images cost little.
            small = plain_mode(image).resize(
                (size, size), Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP
            )
        turn = _turn(image)
        return Square(np.array(_upright(flatten(small), turn)), *_turned(sides, turn))


def photo_size(source: PhotoSource) -> tuple[int, int]:
    """Width and height as seen upright, from the file's header alone. Raises PhotoError."""
    with opened_photo(source) as image:
        return _turned(image.size, _turn(image))


def _turn(image: ImageFile) -> Image.Transpose | None:
    """The rotation that the camera recorded in EXIF; Pillow's TIFF reader applies it itself."""
    if isinstance(image, TiffImageFile):
        return None
    try:
        # The base class's method: PNG's own would decode the whole image.
        orientation = Image.Image.getexif(image).get(_ORIENTATION, 1)
        return _TURNS.get(orientation)
    except Exception:  # damaged EXIF data does not affect the image
        return None


def _turned(sides: tuple[int, int], turn: Image.Transpose | None) -> tuple[int, int]:
    return (sides[1], sides[0]) if turn in _SIDEWAYS else sides


def _upright(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def plain_mode(image: Image.Image) -> Image.Image:
    """The image in 8 bits and without a palette, so that it can be resized: L, LA, RGB, RGBA."""
    if image.mode in _WIDE:
        return _eight_bits(image)
    if image.has_transparency_data:
        return image if image.mode in _KEPT - {"L", "RGB"} else image.convert("RGBA")
    return image if image.mode in _KEPT else image.convert("RGB")


def flatten(image: Image.Image) -> Image.Image:
    """RGB of a plain image; what is transparent becomes white."""
    if image.mode not in ("LA", "RGBA"):
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit gray by its upper half; wider numbers have no agreed white and are scaled by their
    range."""
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray((values >> 8).astype(np.uint8))
    low, high = _range(values)
    scaled = (values.astype(np.float32) - low) * np.float32(255 / (high - low))
    return Image.fromarray(np.nan_to_num(scaled).clip(0, 255).round().astype(np.uint8))


def _range(values: np.ndarray) -> tuple[float, float]:
    """The values of black and white: 0 and 1, 255 or 65,535 if all values are in that range,
    otherwise their minimum and maximum."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low < 0:
        return low, max(high, low + 1)
    tops = (1.0, 255.0, _SIXTEEN_BITS)
    return 0.0, next((top for top in tops if high <= top), high)
