"""From the many ways in which files hold colours to plain RGB."""

import numpy as np
from PIL import Image

_KEPT = {"L", "LA", "RGB", "RGBA"}
_WIDE = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}
_SIXTEEN_BITS = 65535


def plain_mode(image: Image.Image) -> Image.Image:
    """The picture in 8 bits and without a palette, so that it can be resized: L, LA, RGB, RGBA."""
    if image.mode in _WIDE:
        return _eight_bits(image)
    if image.has_transparency_data:
        return image if image.mode in _KEPT - {"L", "RGB"} else image.convert("RGBA")
    return image if image.mode in _KEPT else image.convert("RGB")


def flatten(image: Image.Image) -> Image.Image:
    """RGB of a plain picture; what is transparent becomes white."""
    if image.mode not in ("LA", "RGBA"):
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits by its upper half; wider numbers have no agreed white: by their range."""
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray((values >> 8).astype(np.uint8))
    low, high = _range(values)
    scaled = (values.astype(np.float32) - low) * np.float32(255 / (high - low))
    return Image.fromarray(np.nan_to_num(scaled).clip(0, 255).round().astype(np.uint8))


def _range(values: np.ndarray) -> tuple[float, float]:
    """Black and white: 0 to 1, to 255 or to 65,535 where the values lie so, else their ends."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low < 0:
        return low, max(high, low + 1)
    tops = (1.0, 255.0, _SIXTEEN_BITS)
    return 0.0, next((top for top in tops if high <= top), high)
