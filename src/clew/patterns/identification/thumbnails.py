"""Small pictures of the photos, their shape kept; made some steps ahead by threads."""

import base64
import io
from collections.abc import Iterable, Iterator

from PIL import Image

from clew.patterns.identification.results import Identified
from clew.patterns.photos.decode import PhotoError, open_photo
from clew.threads import map_in_threads

THUMBNAIL_SIDE = 192
_QUALITY = 82


def make_thumbnails(
    photos: Iterable[Identified], *, workers: int
) -> Iterator[tuple[Identified, Image.Image | None]]:
    """Each photo with its thumbnail; None for one that is gone or damaged by now."""
    return map_in_threads(lambda photo: (photo, _make(photo)), photos, workers)


def as_data_address(picture: Image.Image) -> str:
    """The picture itself, as the address of an <img>."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _make(photo: Identified) -> Image.Image | None:
    try:
        picture = open_photo(photo.path, at_least=THUMBNAIL_SIDE)
    except PhotoError:
        return None
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return picture
