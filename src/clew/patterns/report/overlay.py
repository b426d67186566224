"""A heat map over its photo, as a picture that HTML can contain."""

import base64
import io

import numpy as np
from jaxtyping import Float32
from matplotlib import colormaps
from PIL import Image

_QUALITY = 78
_HEAT = colormaps["inferno"]
_DARKEST = 0.3  # below, the colors are nearly black
_STRENGTH = 0.65  # opacity of the strongest heat: the photo can be seen through it


def lay_over(photo: Image.Image, heat: Float32[np.ndarray, "size size"]) -> Image.Image:
    """The network saw the photo squeezed into a square, so the heat map is stretched back to its
    shape. The photo below is gray: color is heat only."""
    wide = np.asarray(Image.fromarray(heat).resize(photo.size, Image.Resampling.BICUBIC))
    heat = np.clip(wide, 0, 1)[..., None]
    gray = np.asarray(photo.convert("L"), dtype=np.float32)[..., None] * np.ones(3, np.float32)
    color = 255 * _HEAT(_DARKEST + (1 - _DARKEST) * heat[..., 0])[..., :3]
    share = _STRENGTH * heat
    return Image.fromarray((gray * (1 - share) + color * share).astype(np.uint8))


def as_data_url(image: Image.Image) -> str:
    """The picture as a JPEG inside a "data:" address."""
    content = io.BytesIO()
    image.save(content, "JPEG", quality=_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
