"""Photos as pixels, whatever the file is: RGB, upright, complete, one or many at a time, here or in
processes. A bad file never raises anything but a PhotoError that says why."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from clew.base.python_processes import start_function
from clew.patterns.photos.opening import (
    TAKES_TURNS,
    PhotoError,
    PhotoSource,
    opened_photo,
    prepare_decoding,
)
from clew.patterns.photos.photo import Fault, Photo

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
_DIGEST_BYTES = 16


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


@dataclass(frozen=True, kw_only=True)
class Squares:
    """The results for some photos. Arrays have one entry per photo; those of faulty ones are
    meaningless, and their digest is None."""

    images: UInt8[np.ndarray, "photos image_bytes"]
    sizes: Int32[np.ndarray, "photos 2"]
    digests: list[str | None]
    faults: dict[int, Fault] = field(default_factory=dict)  # by index

    def read(self, place: int, photo: Photo, size: int, *, take_turns: bool = True) -> None:
        """Decode the photo at index `place`."""
        self.faults.pop(place, None)
        try:
            square = read_photo(photo.path, size, take_turns=take_turns)
        except PhotoError as error:
            self.faults[place] = photo.fault(error.kind, error.reason)
            return
        self.images[place] = square.pixels.reshape(-1)
        self.sizes[place] = square.width, square.height
        self.digests[place] = hash_picture(self.images[place])

    def postponed(self) -> list[int]:
        """The indices of photos that must take turns with others."""
        return [place for place, fault in self.faults.items() if fault.kind == TAKES_TURNS]


def read_squares(photos: Sequence[Photo], size: int, *, take_turns: bool = True) -> Squares:
    """Decode photos one after another. Without `take_turns`, large ones are postponed."""
    squares = Squares(
        images=np.empty((len(photos), size * size * 3), np.uint8),
        sizes=np.zeros((len(photos), 2), np.int32),
        digests=[None] * len(photos),
    )
    for place, photo in enumerate(photos):
        squares.read(place, photo, size, take_turns=take_turns)
    return squares


def hash_picture(image: UInt8[np.ndarray, " image_bytes"]) -> str:
    """Identical images have equal digests, whatever file they came from."""
    return hashlib.blake2b(image.data, digest_size=_DIGEST_BYTES).hexdigest()


class DecodingProcesses:
    """`count` processes, which end with the `with` block, or with this process. A photo gives the
    same pixels, and the same error, as when it is decoded here."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def __enter__(self) -> "DecodingProcesses":
        with suppress(OSError):  # not a Python of its own: photos are decoded without processes
            while len(self._processes) < self._count:
                process = start_function(
                    serve,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl+C is for the process that waits for these
                )
                self._processes.append(process)
                self._free.put(process)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()

    def read_squares(self, photos: Sequence[Photo], size: int) -> Squares:
        """As `read_squares`, in a process that has nothing else to do. Threads may call this at the
        same time; without a process, the photos are decoded here."""
        try:
            process = self._free.get_nowait()
        except Empty:
            return read_squares(photos, size)
        try:
            squares = _ask(process, photos, size)
        except (EOFError, OSError, pickle.UnpicklingError):  # killed, as memory is short, perhaps
            return read_squares(photos, size)
        self._free.put(process)
        for place in squares.postponed():
            squares.read(place, photos[place], size)
        return squares


def _ask(process: subprocess.Popen[bytes], photos: Sequence[Photo], size: int) -> Squares:
    assert process.stdin is not None and isinstance(process.stdout, io.BufferedReader)
    pickle.dump((photos, size), process.stdin)
    process.stdin.flush()
    squares: Squares = pickle.load(process.stdout)
    # Straight into the array: pickled, the images would be copied four times.
    images = np.empty((len(photos), size * size * 3), np.uint8)
    if process.stdout.readinto(images.data.cast("B")) < images.nbytes:
        raise EOFError
    return replace(squares, images=images)


def serve() -> None:
    """Decode what comes through standard input, until it is closed."""
    with suppress(EOFError, BrokenPipeError):
        while True:
            photos, size = pickle.load(sys.stdin.buffer)
            squares = read_squares(photos, size, take_turns=False)
            pickle.dump(replace(squares, images=squares.images[:0]), sys.stdout.buffer)
            sys.stdout.buffer.write(squares.images.data.cast("B"))
            sys.stdout.buffer.flush()
