"""Classifies the photos of requests, which are read exactly as `identify` reads files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from clew.base.errors import InputError
from clew.pages.api.errors import ApiError, invalid
from clew.patterns.identification.recognize import Recognition, look_at_whole
from clew.patterns.photos.decode import PhotoError, open_photo, read_square
from clew.patterns.report.overlay import as_data_url, lay_over
from clew.patterns.serving.requests import PhotoOptions
from clew.patterns.serving.settings import PhotoServiceSettings
from clew.patterns.trained.gradcam import check_maps, heat_maps
from clew.patterns.trained.model import PatternModel

_SIDE = 480


class PhotoClassifier:
    """A model that several threads use at once."""

    def __init__(self, model: PatternModel, settings: PhotoServiceSettings) -> None:
        self.model, self._settings = model, settings
        try:
            check_maps(model)
            self.has_heat_maps = True
        except InputError:
            self.has_heat_maps = False

    def identify(self, photo: bytes, options: PhotoOptions) -> Recognition:
        """Raises ApiError if the photo cannot be used."""
        top_k = options.top_k or self._settings.top_k
        try:
            found = look_at_whole(self.model, photo, Path(options.name), top_k)
        except PhotoError as error:
            raise _unusable(error) from None
        chosen = self._settings
        return replace(found, threshold=chosen.threshold, unknown=chosen.unknown)

    def draw(self, photo: bytes, label: str, options: PhotoOptions) -> dict[str, str]:
        """The photo as people see it, and under the heat map of a class, as "data:" addresses.
        Raises ApiError."""
        if options.heat_map and not self.has_heat_maps:
            raise invalid("heat_map", "This network has no heat maps.")
        if not (options.heat_map or options.preview):
            return {}
        try:
            shown = open_photo(photo, at_least=_SIDE)
            small = ImageOps.contain(shown, (_SIDE, _SIDE), Image.Resampling.LANCZOS)
            drawn = {"preview": as_data_url(small)} if options.preview else {}
            if options.heat_map:
                heat = self._heat(read_square(photo, self.model.image_size), label)
                drawn["heat_map"] = as_data_url(lay_over(small, heat))
        except PhotoError as error:
            raise _unusable(error) from None
        return drawn

    def _heat(self, square: np.ndarray, label: str) -> np.ndarray:
        place = np.array([self.model.classes.index(label)])
        return heat_maps(self.model, square[None], place)[0]


def describe(found: Recognition) -> dict[str, Any]:
    """The response to a request, as plain data."""
    record = found.to_record()
    label, confidence = found.best[0]
    return {
        "photo": record["photo"],
        "label": label,
        "confidence": round(confidence, 6),
        "doubtful": found.is_doubtful,
        "unknown": found.is_unknown,
        "typicality": record["typicality"],
        "best": record["best"],
        "width": record["width"],
        "height": record["height"],
    }


def _unusable(error: PhotoError) -> ApiError:
    """A photo that cannot be read: too large, truncated, not an image, ..."""
    code = error.kind.replace(" ", "_")
    return ApiError(422, f"The photo cannot be used: {error.reason}.", param="image", code=code)
