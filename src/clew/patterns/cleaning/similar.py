"""Photos like a given one, by the features of the pretrained network."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.patterns.cache import CachedPhotos, cache_photos
from clew.patterns.cleaning.neighbors import find_neighbors, unit_rows
from clew.patterns.cleaning.run import CleanSettings, choose_features, compute_set_features
from clew.patterns.features import compute_features
from clew.patterns.photos import find_photos


@dataclass(frozen=True, kw_only=True)
class SimilarPhoto:
    """A photo of the set, and its similarity to the given one: 1 for the same image, about 0 for
    any other photo."""

    name: str
    label: str
    path: Path
    similarity: float


def find_similar_photos(
    image: Path,
    settings: CleanSettings,
    *,
    count: int,
    reporter: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[SimilarPhoto, ...]:
    """The photos of a folder that are most like `image`, the most similar first. The file itself is
    not among them. Raises InputError if the image cannot be read."""
    if count < 1:
        raise InputError("give 1 or more.", setting="top_k", value=count)
    if not image.expanduser().is_file():
        raise InputError(f'there is no photo "{image}": check the path.')
    cached, features = compute_set_features(settings, reporter, should_stop)
    asked = _look_at_one(image, settings, cached)
    mean = features.embedding.mean(0)
    nearest = find_neighbors(unit_rows(features.embedding, mean), count + 1, unit_rows(asked, mean))
    own = image.expanduser().resolve()
    found = [
        SimilarPhoto(
            name=cached.photos[place].name,
            label=cached.photos[place].label or "",
            path=cached.photos[place].path,
            similarity=round(float(similarity), 4),
        )
        for place, similarity in zip(
            nearest.places[0].tolist(), nearest.similarity[0].tolist(), strict=True
        )
        if cached.photos[place].path.resolve() != own
    ]
    return tuple(found[:count])


def _look_at_one(
    image: Path, settings: CleanSettings, others: CachedPhotos
) -> Float32[np.ndarray, "1 1280"]:
    """The features of one photo, computed like those of the others."""
    with tempfile.TemporaryDirectory() as scratch:
        cached = cache_photos(find_photos(image), Path(scratch), others.size, workers=1)
        if not cached.photos:
            raise InputError(f'"{image}" cannot be read: {cached.faults[0].reason}.')
        return compute_features(
            cached,
            Path(scratch) / "features",
            settings=choose_features(others),
            device=settings.device,
            threads=settings.threads,
            reporter=lambda _: None,
        ).embedding
